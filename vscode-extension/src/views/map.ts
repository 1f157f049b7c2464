// The view *Graph Map*: layers and ops around the current statement.  Its page: webview/map.
// Netron shows the whole model, if its extension is installed.

import * as vscode from "vscode";
import { declares } from "../environment/extensions";
import { PageView } from "./pageView";
import type { SessionEvents } from "./sessionEvents";

const NETRON = "vscode-netron.open";

export class GraphMap extends PageView {
  private model: string | undefined;

  constructor(extension: vscode.Uri, sessions: SessionEvents) {
    super(extension, sessions, "nncdbg/map", { name: "map", title: "Graph Map", libraries: ["dagre"] });
  }

  override show(answer: unknown, session: vscode.DebugSession): void {
    super.show(answer, session);
    const { program } = session.configuration;
    const model = typeof program === "string" && program.endsWith(".onnx") && declares("commands", { command: NETRON }) ? program : undefined;
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
