"""Rows about the worker on a GPU, and what it takes to measure them. Standard library only: it is carried to machines
that have nothing else."""
