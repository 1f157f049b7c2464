// The whole graph in an editor tab, which follows the active session.  What is drawn: webview/graph.

import * as vscode from "vscode";
import { openLine, uriOf } from "../views/pageView";
import { Follower, FollowingView } from "../views/following";
import type { FromTab, Graph, State, ToTab } from "./messages";
import { bundled, documentOf } from "../pages/page";
import { Sessions } from "../views/sessionEvents";

export class GraphTab implements FollowingView, vscode.Disposable {
  readonly request = "nncdbg/graphState";
  readonly follower: Follower;
  private readonly listener = vscode.debug.onDidChangeBreakpoints(() => this.tellBreakpoints());
  private panel: vscode.WebviewPanel | undefined;
  private opened: string[] = [];
  private statistics = false;
  private graph: Graph | undefined;
  /** The session that the graph is of. */
  private session: vscode.DebugSession | undefined;

  constructor(
    private readonly extension: vscode.Uri,
    private readonly sessions: Sessions,
  ) {
    this.follower = new Follower(this, sessions);
  }

  /** Shows the tab. */
  async open(): Promise<void> {
    if (this.panel) {
      this.panel.reveal();
      return;
    }
    const options = { enableScripts: true, localResourceRoots: [], retainContextWhenHidden: true };
    const panel = vscode.window.createWebviewPanel("nncdbg.graph", "Graph", vscode.ViewColumn.Beside, options);
    this.panel = panel;
    this.session = undefined;
    panel.iconPath = vscode.Uri.joinPath(this.extension, "media", "nnc-dark.svg");
    panel.onDidDispose(() => (this.panel = undefined));
    panel.onDidChangeViewState(() => this.follower.update());
    panel.webview.onDidReceiveMessage((message: FromTab) => this.hear(message));
    const worker = await Promise.all(["dagre.js", "layout.js"].map((file) => bundled(this.extension, file)));
    panel.webview.html = await documentOf(this.extension, "graph", "Graph", { texts: { layout: worker.join("\n") } });
  }

  get visible(): boolean {
    return this.panel?.visible ?? false;
  }

  asks(): object {
    return { statistics: this.statistics };
  }

  show(state: State, session: vscode.DebugSession): void {
    void this.update(state, session);
  }

  say(words: string): void {
    this.tell({ kind: "say", words });
  }

  private async update(state: State, session: vscode.DebugSession): Promise<void> {
    if (session !== this.session) {
      this.session = session;
      this.opened = [];
      await this.askGraph();
    }
    this.tell({ kind: "state", state });
  }

  private async askGraph(): Promise<void> {
    const { session, opened } = this;
    if (!session) {
      return;
    }
    try {
      this.graph = await this.sessions.ask<Graph>(session, "nncdbg/graph", { open: opened }).body;
      this.tell({ kind: "graph", graph: this.graph });
      this.tellBreakpoints();
    } catch (error) {
      this.say((error as Error).message);
    }
  }

  private tell(message: ToTab): void {
    void this.panel?.webview.postMessage(message);
  }

  private hear(message: FromTab): void {
    switch (message.kind) {
      case "ready":
        this.session = undefined;
        this.follower.again();
        break;
      case "line":
        void openLine({ source: this.graph?.source ?? {}, line: message.line }, this.session);
        break;
      case "breakpoint":
        this.toggleBreakpoint(message.line);
        break;
      case "ask":
        void this.ask(message.open, message.statistics);
        break;
    }
  }

  private async ask(open: string[], statistics: boolean): Promise<void> {
    this.statistics = statistics;
    if (open.join("\n") !== this.opened.join("\n")) {
      this.opened = open;
      await this.askGraph();
    }
    this.follower.again();
  }

  private breakpoints(): vscode.SourceBreakpoint[] {
    const uri = this.graph && uriOf(this.graph.source, this.session).toString();
    const inSource = (each: vscode.Breakpoint) => each instanceof vscode.SourceBreakpoint && each.location.uri.toString() === uri;
    return vscode.debug.breakpoints.filter(inSource) as vscode.SourceBreakpoint[];
  }

  private toggleBreakpoint(line: number): void {
    if (!this.graph) {
      return;
    }
    const there = this.breakpoints().filter(({ location }) => location.range.start.line === line - 1);
    if (there.length) {
      vscode.debug.removeBreakpoints(there);
    } else {
      const place = new vscode.Location(uriOf(this.graph.source, this.session), new vscode.Position(line - 1, 0));
      vscode.debug.addBreakpoints([new vscode.SourceBreakpoint(place)]);
    }
  }

  private tellBreakpoints(): void {
    this.tell({ kind: "breakpoints", lines: this.breakpoints().map(({ location }) => location.range.start.line + 1) });
  }

  dispose(): void {
    this.listener.dispose();
    this.panel?.dispose();
  }
}
