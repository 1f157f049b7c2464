// Layers and ops around the place where the program stands.  What is drawn: webview/map.
// The whole of a model is shown by Netron, where its extension is installed.

import * as vscode from "vscode";
import { DrawnView } from "./pageView";
import { Sessions } from "./sessionEvents";

const NETRON = "vscode-netron.open";

export class GraphMap extends DrawnView {
  readonly request = "nncdbg/map";
  private model: string | undefined;

  constructor(extension: vscode.Uri, sessions: Sessions) {
    super(extension, sessions, "map", "Graph Map", ["dagre"]);
  }

  override show(answer: unknown, session: vscode.DebugSession): void {
    super.show(answer, session);
    const { program } = session.configuration;
    const model = typeof program === "string" && program.endsWith(".onnx") && hasNetron() ? program : undefined;
    if (model !== this.model) {
      this.model = model;
      void vscode.commands.executeCommand("setContext", "nncdbg.netron", model !== undefined);
    }
  }

  async openInNetron(): Promise<void> {
    if (this.model !== undefined) {
      await vscode.commands.executeCommand(NETRON, vscode.Uri.file(this.model));
    }
  }
}

function hasNetron(): boolean {
  type Manifest = { contributes?: { commands?: unknown } };
  const declared = (extension: vscode.Extension<unknown>) => [(extension.packageJSON as Manifest).contributes?.commands ?? []].flat() as { command?: string }[];
  return vscode.extensions.all.some((each) => declared(each).some(({ command }) => command === NETRON));
}
