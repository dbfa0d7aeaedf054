/* A stand-in for NVIDIA's management library: GPUs, memory and processes as a text file says at the moment of each call.
 * A test edits the file, which is what pulling a card, a driver reset or a hang look like from outside. FAKE_NVML names
 * the file; the format of its lines is in tests/src/fake_gpus.rs. Only what model-boss calls is here. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, INVALID_ARGUMENT = 2, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { MOST_GPUS = 64, MOST_PROCESSES = 512, NAME = 96 };

typedef unsigned long long Bytes;
typedef struct { char uuid[NAME]; } *Handle;
typedef struct { unsigned version; Bytes total, reserved, free, used; } Memory;
typedef struct { unsigned pid; Bytes used; unsigned instance, compute_instance; } Process;

struct gpu { char uuid[NAME]; Bytes total, others; };
struct held { char uuid[NAME]; unsigned pid; Bytes bytes; };
struct machine {
    struct gpu gpus[MOST_GPUS];
    struct held held[MOST_PROCESSES];
    unsigned count, processes;
    /* How processes are listed: 0 as they are, 1 not at all, 2 by numbers of another pid namespace, 3 refused. */
    int listing;
    int error;
    int hangs;
    /* Whether processes that are gone are shown as before. */
    int keeps;
};

/* Handles last as long as the library, whatever becomes of their GPUs. */
static struct { char uuid[NAME]; } known[MOST_GPUS];
static unsigned known_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Handle handle_of(const char *uuid) {
    pthread_mutex_lock(&lock);
    unsigned at = 0;
    while (at < known_count && strcmp(known[at].uuid, uuid) != 0) at++;
    if (at == known_count && at < MOST_GPUS) strcpy(known[known_count++].uuid, uuid);
    pthread_mutex_unlock(&lock);
    return at < MOST_GPUS ? (Handle)&known[at] : NULL;
}

/* A process that is gone has given its memory back. */
static int lives(unsigned pid) { return kill((pid_t)pid, 0) == 0 || errno == EPERM; }

/* What the file says now, as far as it concerns this call. A file that is not there says that the driver is broken. */
static int read_machine(const char *call, struct machine *machine) {
    memset(machine, 0, sizeof *machine);
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return UNKNOWN;
    char line[256], word[NAME];
    while (fgets(line, sizeof line, file)) {
        struct gpu gpu;
        struct held held;
        int number;
        if (machine->count < MOST_GPUS && sscanf(line, "gpu %95s %llu %llu", gpu.uuid, &gpu.total, &gpu.others) == 3)
            machine->gpus[machine->count++] = gpu;
        else if (sscanf(line, "process %95s %u %llu", held.uuid, &held.pid, &held.bytes) == 3) {
            if (machine->processes < MOST_PROCESSES && (machine->keeps || lives(held.pid))) machine->held[machine->processes++] = held;
        } else if (sscanf(line, "listing %d", &number) == 1)
            machine->listing = number;
        else if (sscanf(line, "keeps %d", &number) == 1)
            machine->keeps = number;
        else if (sscanf(line, "fail %95s %d", word, &number) == 2 && strcmp(word, call) == 0)
            machine->error = number;
        else if (sscanf(line, "hang %95s", word) == 1 && strcmp(word, call) == 0)
            machine->hangs = 1;
    }
    fclose(file);
    return machine->error;
}

/* The machine at the end of whatever hang the file orders. */
static int look(const char *call, struct machine *machine) {
    int code = read_machine(call, machine);
    while (machine->hangs) {
        struct timespec pause = { 0, 2 * 1000 * 1000 };
        nanosleep(&pause, NULL);
        code = read_machine(call, machine);
    }
    return code;
}

static int find(const struct machine *machine, Handle handle, const struct gpu **found) {
    if (!handle) return INVALID_ARGUMENT;
    for (unsigned at = 0; at < machine->count; at++)
        if (strcmp(machine->gpus[at].uuid, handle->uuid) == 0) {
            *found = &machine->gpus[at];
            return SUCCESS;
        }
    return GPU_IS_LOST;
}

static int look_at(const char *call, Handle handle, struct machine *machine, const struct gpu **gpu) {
    int code = look(call, machine);
    return code ? code : find(machine, handle, gpu);
}

static int put(char *to, unsigned size, const char *text) {
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

int nvmlInit_v2(void) {
    struct machine machine;
    return look(__func__, &machine);
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "a fake error"; }

int nvmlSystemGetDriverVersion(char *version, unsigned size) { return put(version, size, "570.00"); }

int nvmlDeviceGetCount_v2(unsigned *count) {
    struct machine machine;
    int code = look(__func__, &machine);
    if (!code) *count = machine.count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
    struct machine machine;
    int code = look(__func__, &machine);
    if (code) return code;
    if (index >= machine.count) return INVALID_ARGUMENT;
    *handle = handle_of(machine.gpus[index].uuid);
    return *handle ? SUCCESS : UNKNOWN;
}

int nvmlDeviceGetName(Handle handle, char *name, unsigned size) {
    struct machine machine;
    const struct gpu *gpu;
    int code = look_at(__func__, handle, &machine, &gpu);
    return code ? code : put(name, size, "Fake GPU");
}

int nvmlDeviceGetUUID(Handle handle, char *uuid, unsigned size) {
    struct machine machine;
    const struct gpu *gpu;
    int code = look_at(__func__, handle, &machine, &gpu);
    return code ? code : put(uuid, size, gpu->uuid);
}

int nvmlDeviceGetMemoryInfo_v2(Handle handle, Memory *memory) {
    struct machine machine;
    const struct gpu *gpu;
    int code = look_at(__func__, handle, &machine, &gpu);
    if (code) return code;
    Bytes used = gpu->others;
    for (unsigned at = 0; at < machine.processes; at++)
        if (strcmp(machine.held[at].uuid, gpu->uuid) == 0) used += machine.held[at].bytes;
    memory->total = gpu->total;
    memory->reserved = 0;
    memory->used = used < gpu->total ? used : gpu->total;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned *count, Process *processes) {
    struct machine machine;
    const struct gpu *gpu;
    int code = look_at(__func__, handle, &machine, &gpu);
    if (code) return code;
    if (machine.listing == 3) return 3; /* not supported */
    unsigned room = *count, there = 0;
    for (unsigned at = 0; machine.listing != 1 && at < machine.processes; at++) {
        const struct held *held = &machine.held[at];
        if (strcmp(held->uuid, gpu->uuid) != 0) continue;
        if (there < room && processes) {
            /* Numbers of another namespace are none that this one gives out (PID_MAX_LIMIT is 4,194,304). */
            unsigned pid = machine.listing == 2 ? held->pid + 4194304 : held->pid;
            processes[there] = (Process){ pid, held->bytes, 0, 0 };
        }
        there++;
    }
    *count = there;
    return there > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned *count, Process *processes) {
    struct machine machine;
    const struct gpu *gpu;
    (void)processes;
    int code = look_at(__func__, handle, &machine, &gpu);
    if (!code) *count = 0;
    return code;
}
