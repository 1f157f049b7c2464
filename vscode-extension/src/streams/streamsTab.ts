// The tab *Timeline of Streams*: a lane for each stream of a schedule, at each stop.  Its page: webview/streams.

import * as vscode from "vscode";
import { Page } from "../pages/page";
import { Follower, type FollowingView } from "../views/following";
import type { SessionEvents } from "../views/sessionEvents";
import { openLine } from "../views/sources";
import type { FromStreams, StreamTimeline, ToStreams } from "./messages";

const TITLE = "Timeline of Streams";

export class StreamsTab implements FollowingView, vscode.Disposable {
  readonly request = "nncdbg/streams";
  readonly follower: Follower;
  private panel: vscode.WebviewPanel | undefined;
  private page: Page<FromStreams, ToStreams> | undefined;
  /** The source of the timeline that is shown, and its session. */
  private shown: { source: StreamTimeline["source"]; session: vscode.DebugSession } | undefined;

  constructor(
    private readonly extension: vscode.Uri,
    sessions: SessionEvents,
  ) {
    this.follower = new Follower(this, sessions);
  }

  /** Opens the tab; without a session, also one of the open graph text. */
  async open(): Promise<void> {
    if (vscode.debug.activeDebugSession?.type !== "nncdbg") {
      await vscode.commands.executeCommand("nncdbg.debugGraph");
    }
    if (this.panel) {
      this.panel.reveal();
      return;
    }
    const panel = vscode.window.createWebviewPanel("nncdbg.streams", TITLE, { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true });
    this.panel = panel;
    panel.iconPath = vscode.Uri.joinPath(this.extension, "media", "nnc-dark.svg");
    panel.onDidDispose(() => (this.panel = this.page = undefined));
    panel.onDidChangeViewState(() => this.follower.update());
    this.page = new Page<FromStreams, ToStreams>(panel.webview, this.extension, { name: "streams", title: TITLE }, {
      // VS Code discards a hidden page.
      ready: () => this.follower.restart(),
      openLine: ({ line }) => this.shown && void openLine({ source: this.shown.source, line }, this.shown.session),
    });
  }

  get visible(): boolean {
    return this.panel?.visible ?? false;
  }

  arguments(): object {
    return {};
  }

  show(timeline: StreamTimeline, session: vscode.DebugSession): void {
    this.shown = { source: timeline.source, session };
    this.page?.send({ kind: "timeline", timeline });
  }

  showStatus(text: string): void {
    this.page?.send({ kind: "status", text });
  }

  dispose(): void {
    this.panel?.dispose();
  }
}
