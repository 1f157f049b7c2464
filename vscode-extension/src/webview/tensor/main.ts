// The page of a tensor view.

import type { FromView, ToView } from "../../tensorMessages";
import "./style.css";
import { View } from "./view";

interface Editor {
  postMessage(message: FromView): void;
  getState(): object | undefined;
  setState(state: object): void;
}

declare function acquireVsCodeApi(): Editor;

const editor = acquireVsCodeApi();
const view = new View(
  document.body,
  (message) => editor.postMessage(message),
  (kept) => editor.setState(kept),
  editor.getState() ?? {},
);
window.addEventListener("message", (event: MessageEvent<ToView>) => view.hear(event.data));
editor.postMessage({ kind: "ready" });
