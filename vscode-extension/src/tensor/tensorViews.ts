// The tensor views: *View Tensor* opens a panel for a value, or shows the existing one.

import * as vscode from "vscode";
import { selectedFrameId } from "../session/commands";
import type { Connections } from "../session/connections";
import { SessionEvents } from "../views/sessionEvents";
import { TensorPanel } from "./tensorPanel";

export class TensorViews implements vscode.Disposable {
  private readonly panels = new Set<TensorPanel>();
  private readonly sessions: SessionEvents;

  constructor(
    private readonly extension: vscode.Uri,
    connections: Connections,
    onValues: vscode.Event<vscode.DebugSession>,
  ) {
    this.sessions = new SessionEvents(connections, onValues);
  }

  follow(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    return this.sessions.tracker(session);
  }

  /** Shows the value of an expression in the selected frame. */
  open(session: vscode.DebugSession, expression: string): void {
    const frameId = selectedFrameId();
    for (const panel of this.panels) {
      if (panel.shows(session, expression)) {
        panel.show(session, frameId);
        return;
      }
    }
    const column = [...this.panels].at(-1)?.column ?? vscode.ViewColumn.Beside;
    const closed = (panel: TensorPanel) => this.panels.delete(panel);
    this.panels.add(new TensorPanel(this.extension, this.sessions, session, expression, frameId, column, closed));
  }

  dispose(): void {
    this.panels.forEach((each) => void each.dispose());
    this.sessions.dispose();
  }
}
