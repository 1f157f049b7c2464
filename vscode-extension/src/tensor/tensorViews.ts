// The tensor views of a window: *View Tensor* opens one for a value, or shows the one that there is.

import * as vscode from "vscode";
import { Sessions } from "../views/sessionEvents";
import { TensorPanel } from "./tensorPanel";
import type { Wires } from "../session/connections";

export class TensorViews implements vscode.Disposable {
  private readonly panels = new Set<TensorPanel>();
  private readonly sessions: Sessions;

  constructor(
    private readonly extension: vscode.Uri,
    wires: Wires,
    given: vscode.Event<vscode.DebugSession>,
  ) {
    this.sessions = new Sessions(wires, given);
  }

  follow(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    return this.sessions.tracker(session);
  }

  /** Looks at an expression from the frame that is shown. */
  open(session: vscode.DebugSession, expression: string): void {
    const item = vscode.debug.activeStackItem;
    const frameId = item instanceof vscode.DebugStackFrame ? item.frameId : undefined;
    for (const panel of this.panels) {
      if (panel.isOf(session, expression)) {
        panel.show(session, frameId);
        return;
      }
    }
    const column = [...this.panels].at(-1)?.column ?? vscode.ViewColumn.Beside;
    const panel = new TensorPanel(this.extension, this.sessions, session, expression, frameId, column);
    this.panels.add(panel);
    panel.onClosed(() => this.panels.delete(panel));
  }

  dispose(): void {
    this.panels.forEach((each) => void each.dispose());
    this.sessions.dispose();
  }
}
