// The view *Explain Value*: the statements that a value was computed from.  Its page: webview/explain.

import * as vscode from "vscode";
import { type VariableContext, selectedFrameId, valueOf } from "../session/commands";
import { PageView } from "./pageView";
import type { SessionEvents } from "./sessionEvents";

export class Explain extends PageView {
  /** The selected frame when the user chose a value: for the current stop only. */
  private frameId: number | undefined;

  constructor(extension: vscode.Uri, sessions: SessionEvents) {
    super(extension, sessions, "nncdbg/explain", { name: "explain", title: "Explain Value" });
  }

  override arguments(): object {
    return { ...super.arguments(), frameId: this.frameId };
  }

  override show(answer: unknown, session: vscode.DebugSession): void {
    this.frameId = undefined;
    super.show(answer, session);
  }

  /** Explains the value of a command, now and at each later stop. */
  async explain(of: VariableContext | vscode.Uri | undefined): Promise<void> {
    const expression = await valueOf(of);
    if (expression) {
      this.frameId = selectedFrameId();
      this.choose({ expression });
      await vscode.commands.executeCommand("nncdbg.explain.focus");
    }
  }
}
