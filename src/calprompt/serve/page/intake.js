// How images come in: chosen, dropped (folders too), pasted, or taken with the camera.

import { announce, byId } from "./dom.js";
import { frame } from "./live.js";

const PICTURE = /\.(avif|bmp|dib|gif|heic|heif|jfif|jpe?g|jp2|png|ppm|pgm|pbm|tga|tiff?|webp)$/i;

/** `accept(files)` takes what comes in; `refuse(text)` says why something did not. */
export function watchIntake(accept, refuse) {
  const taken = { pasted: 0, camera: 0 };
  const numbered = (kind, blob, ending) => {
    taken[kind] += 1;
    return new File([blob], `${kind}-${taken[kind]}.${ending}`, { type: blob.type });
  };
  const chooser = byId("chooser");
  byId("choose").addEventListener("click", () => chooser.click());
  for (const input of [chooser, byId("capture")]) {
    input.addEventListener("change", () => {
      accept([...input.files]);
      input.value = ""; // the same file may be chosen again
    });
  }
  watchDrops(accept, refuse);
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])].filter(isPicture);
    if (files.length) {
      event.preventDefault();
      accept(files.map((file) => (/^image\.\w+$/.test(file.name) ? numbered("pasted", file, ending(file)) : file)));
    } else if (!event.target.closest?.("input, textarea, select")) {
      refuse("There is no image on the clipboard. Copy a picture, not its address or text.");
    }
  });
  watchCamera((blob) => accept([numbered("camera", blob, "jpg")]));
}

const isPicture = (file) => file.type.startsWith("image/") || PICTURE.test(file.name);
const ending = (file) => file.type.split("/")[1]?.replace("jpeg", "jpg").replace(/\W.*/, "") || "png";

function watchDrops(accept, refuse) {
  let inside = 0; // dragenter and dragleave come for every element on the way
  const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const mark = (count) => {
    inside = count;
    document.body.classList.toggle("dropping", inside > 0);
  };
  addEventListener("dragenter", (event) => carriesFiles(event) && mark(inside + 1));
  addEventListener("dragleave", (event) => carriesFiles(event) && mark(Math.max(0, inside - 1)));
  addEventListener("dragover", (event) => event.preventDefault()); // or the browser would leave the page for the file
  addEventListener("drop", async (event) => {
    event.preventDefault();
    mark(0);
    if (!carriesFiles(event)) {
      refuse("Only files can be dropped here. Save the picture first, or copy and paste it.");
      return;
    }
    const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
    const entries = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile()); // only now, not after a wait
    const files = (await Promise.all(entries.map(filesIn))).flat();
    const pictures = entries.some((entry) => entry?.isDirectory) ? files.filter(isPicture) : files;
    if (pictures.length) accept(pictures);
    else refuse("There is no image in what was dropped.");
  });
}

/** All files of a dropped file or folder, with their way inside the folder as their name. */
async function filesIn(entry) {
  if (!entry) return [];
  if (entry instanceof File) return [entry];
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject)).catch(() => null);
    if (file) Object.defineProperty(file, "shownName", { value: entry.fullPath.replace(/^\//, "") });
    return file ? [file] : [];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) break;
    found.push(...some);
  }
  return (await Promise.all(found.map(filesIn))).flat();
}

function watchCamera(accept) {
  const dialog = byId("camera");
  const video = byId("video");
  const shutter = byId("shutter");
  const problem = byId("camera-problem");
  let stream = null;

  const stop = () => {
    stream?.getTracks().forEach((track) => track.stop());
    stream = null;
    video.srcObject = null;
  };

  byId("take").addEventListener("click", async () => {
    if (!navigator.mediaDevices?.getUserMedia) {
      byId("capture").click(); // a page without https may not see the camera, but may ask for its app
      return;
    }
    problem.textContent = "";
    shutter.disabled = byId("live").disabled = true;
    dialog.showModal();
    try {
      const wanted = { facingMode: { ideal: "environment" }, width: { ideal: 4096 }, height: { ideal: 4096 } };
      const found = await navigator.mediaDevices.getUserMedia({ video: wanted, audio: false });
      if (!dialog.open) {
        found.getTracks().forEach((track) => track.stop());
        return;
      }
      stream = found;
      video.srcObject = stream;
      await video.play();
      shutter.disabled = byId("live").disabled = false;
      shutter.focus();
    } catch (error) {
      problem.textContent =
        error.name === "NotAllowedError"
          ? "The camera may not be used: allow it for this page in the browser, or choose a file instead."
          : "No camera can be opened. Choose a file instead.";
    }
  });
  shutter.addEventListener("click", async () => {
    accept(await frame(video, Infinity, 0.95));
    announce("Picture taken");
    dialog.close();
  });
  byId("camera-app").addEventListener("click", () => {
    dialog.close();
    byId("capture").click();
  });
  dialog.addEventListener("close", stop);
}
