// The page of a tensor view.

import type { FromTensor, ToTensor } from "../../tensor/messages";
import { Host } from "../page/host";
import { PlotLibrary } from "./plotLibrary";
import "./style.css";
import { type KeptOptions, TensorView } from "./view";

const host = new Host<ToTensor, FromTensor, KeptOptions>({});
const { nonce = "" } = document.currentScript as HTMLScriptElement;
const library = new PlotLibrary(() => host.send({ kind: "loadLibrary" }), nonce);
const view = new TensorView(document.body, host, library);
host.receive({
  subject: (subject) => view.follow(subject),
  answer: (message) => view.receive(message),
  failed: (message) => view.receive(message),
  elementSet: ({ error }) => view.showMessage(error ?? ""),
  library: ({ text }) => library.run(text),
});
host.send({ kind: "ready" });
