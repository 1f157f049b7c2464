// What a value was computed from: the statements, their statistics and causes.  What is drawn: webview/explain.

import * as vscode from "vscode";
import { type VariableContext, valueOf } from "../session/commands";
import { DrawnView } from "./pageView";
import { Sessions } from "./sessionEvents";

export class Explain extends DrawnView {
  readonly request = "nncdbg/explain";
  /** The frame that was selected when a value was chosen; it counts at that stop only. */
  private frameId: number | undefined;

  constructor(extension: vscode.Uri, sessions: Sessions) {
    super(extension, sessions, "explain", "Explain Value");
  }

  override asks(): object {
    return { ...super.asks(), frameId: this.frameId };
  }

  override show(answer: unknown, session: vscode.DebugSession): void {
    this.frameId = undefined;
    super.show(answer, session);
  }

  /** Explains the value that a command is about, from now on at each stop. */
  async explain(of: VariableContext | vscode.Uri | undefined): Promise<void> {
    const expression = await valueOf(of);
    if (expression) {
      const item = vscode.debug.activeStackItem;
      this.frameId = item instanceof vscode.DebugStackFrame ? item.frameId : undefined;
      this.ask({ expression });
      await vscode.commands.executeCommand("nncdbg.explain.focus");
    }
  }
}
