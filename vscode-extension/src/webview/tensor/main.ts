// The page of a tensor view.

import type { FromView, ToLibrary, ToView } from "../../tensor/messages";
import "./style.css";
import { Library } from "./library";
import { View } from "./view";

interface Editor {
  postMessage(message: FromView): void;
  getState(): object | undefined;
  setState(state: object): void;
}

declare function acquireVsCodeApi(): Editor;

const editor = acquireVsCodeApi();
const { nonce = "" } = document.currentScript as HTMLScriptElement;
const library = new Library(() => editor.postMessage({ kind: "plot" }), nonce);
const view = new View(
  document.body,
  (message) => editor.postMessage(message),
  (kept) => editor.setState(kept),
  editor.getState() ?? {},
  library,
);
window.addEventListener("message", ({ data }: MessageEvent<ToView | ToLibrary>) => (data.kind === "library" ? library.run(data.text) : view.hear(data)));
editor.postMessage({ kind: "ready" });
