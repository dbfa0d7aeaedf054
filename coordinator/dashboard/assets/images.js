// Images of a chat: chosen or pasted files as data URLs.

import { toast } from "./dialogs.js";
import { h } from "./dom.js";
import { bytes } from "./format.js";

const MOST = 8;
const LARGEST = 10 << 20;

/** The images of the next message: `{ node, add(files), take() }`. */
export function attachments() {
  let all = [];
  const node = h("ul", { class: "attachments", "aria-label": "Attached images", hidden: true });
  const show = () => {
    node.hidden = all.length === 0;
    node.replaceChildren(
      ...all.map((image, i) =>
        h(
          "li",
          {},
          h("img", { src: image.url, alt: image.name }),
          h(
            "button",
            {
              type: "button",
              class: "plain",
              "aria-label": `Remove ${image.name}`,
              on: { click: () => (all.splice(i, 1), show()) },
            },
            "×",
          ),
        ),
      ),
    );
  };
  const add = async (files) => {
    for (const file of files) {
      if (!file.type.startsWith("image/")) toast(`${file.name} is no image`, "fault");
      else if (file.size > LARGEST) toast(`${file.name} is larger than ${bytes(LARGEST)}`, "fault");
      else if (all.length >= MOST) toast(`a message has at most ${MOST} images`, "fault");
      else all.push({ name: file.name || "pasted image", url: await dataUrl(file) });
    }
    show();
  };
  const take = () => {
    const taken = all;
    all = [];
    show();
    return taken;
  };
  return { node, add, take };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
