// Pictures to try the page with while it is empty: those that the server offers.

import { byId, make } from "./dom.js";

/** `accept(file)` takes the one that is chosen. */
export async function offerSamples(server, accept) {
  let samples = [];
  try {
    ({ samples } = await server.request("v1/samples", { tries: 1 }));
  } catch {
    return; // the page works without them
  }
  byId("samples").hidden = !samples.length;
  const entries = samples.map(async ({ name, address }) => {
    const blob = await server.picture(address);
    const file = new File([blob], name, { type: blob.type });
    const url = URL.createObjectURL(blob);
    const image = make("img", { alt: "", width: 56, height: 56 });
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    image.src = url;
    return make("li", {}, make("button.sample", { type: "button", "aria-label": `Try ${name}`, onclick: () => accept(file) }, image));
  });
  byId("sample-list").replaceChildren(...(await Promise.all(entries)));
}
