// The whole graph in an editor tab, which follows the active session.  Its page: webview/graph.

import * as vscode from "vscode";
import { Page } from "../pages/page";
import { Follower, type FollowingView } from "../views/following";
import type { SessionEvents } from "../views/sessionEvents";
import { openLine, uriOf } from "../views/sources";
import type { FromGraph, Graph, GraphState, ToGraph } from "./messages";

/** The statements of a graph that opens with all layers when the session ends. */
const MOST_AT_END = 2000;
const ENDED = "The session has ended. Start it again to expand or collapse layers.";

export class GraphTab implements FollowingView, vscode.Disposable {
  readonly request = "nncdbg/graphState";
  readonly follower: Follower;
  private readonly listener: vscode.Disposable;
  private panel: vscode.WebviewPanel | undefined;
  private page: Page<FromGraph, ToGraph> | undefined;
  private expanded: string[] = [];
  private statistics = false;
  private graph: Graph | undefined;
  /** The session that the graph belongs to. */
  private session: vscode.DebugSession | undefined;
  private over: vscode.DebugSession | undefined;

  constructor(
    private readonly extension: vscode.Uri,
    private readonly sessions: SessionEvents,
  ) {
    this.follower = new Follower(this, sessions);
    this.listener = vscode.Disposable.from(
      vscode.debug.onDidChangeBreakpoints(() => this.sendBreakpoints()),
      sessions.onEvent(({ session, event }) => event === "nncdbg/summary" && session === this.session && void this.showEnd(session)),
    );
  }

  open(): void {
    if (this.panel) {
      this.panel.reveal();
      return;
    }
    const panel = vscode.window.createWebviewPanel("nncdbg.graph", "Graph", vscode.ViewColumn.Beside, { retainContextWhenHidden: true });
    this.panel = panel;
    panel.iconPath = vscode.Uri.joinPath(this.extension, "media", "nnc-dark.svg");
    panel.onDidDispose(() => (this.panel = this.page = undefined));
    panel.onDidChangeViewState(() => this.follower.update());
    this.page = new Page<FromGraph, ToGraph>(panel.webview, this.extension, { name: "graph", title: "Graph", worker: ["dagre", "layout"] }, {
      ready: () => {
        this.session = undefined;
        this.follower.restart();
      },
      openLine: ({ line }) => void openLine({ source: this.graph?.source ?? {}, line }, this.session),
      toggleBreakpoint: ({ line }) => this.toggleBreakpoint(line),
      choose: ({ expanded, statistics }) => void this.choose(expanded, statistics),
    });
  }

  get visible(): boolean {
    return this.panel?.visible ?? false;
  }

  arguments(): object {
    return { statistics: this.statistics };
  }

  show(state: GraphState, session: vscode.DebugSession): void {
    void this.update(state, session);
  }

  /** Shows the run as a whole at its end, with all layers, which can be expanded no more: the server answers until VS Code disconnects. */
  private async showEnd(session: vscode.DebugSession): Promise<void> {
    this.over = session;
    try {
      const graph = this.sessions.request<Graph>(session, "nncdbg/graph", { all: true });
      const state = this.sessions.request<GraphState>(session, this.request, { statistics: true });
      const whole = await graph.body;
      if (whole.nodes.length <= MOST_AT_END) {
        this.graph = whole;
        this.page?.send({ kind: "graph", graph: whole });
      }
      this.page?.send({ kind: "state", state: await state.body });
    } catch {
      // VS Code has disconnected: the tab keeps the last stop.
    }
  }

  showStatus(text: string): void {
    this.page?.send({ kind: "status", text });
  }

  private async update(state: GraphState, session: vscode.DebugSession): Promise<void> {
    if (session !== this.session) {
      this.session = session;
      this.expanded = [];
      await this.requestGraph();
    }
    this.page?.send({ kind: "state", state });
  }

  private async requestGraph(): Promise<void> {
    const { session, expanded } = this;
    if (!session) {
      return;
    }
    try {
      this.graph = await this.sessions.request<Graph>(session, "nncdbg/graph", { open: expanded }).body;
      this.page?.send({ kind: "graph", graph: this.graph });
      this.sendBreakpoints();
    } catch (error) {
      this.showStatus(session === this.over ? ENDED : (error as Error).message);
    }
  }

  private async choose(expanded: string[], statistics: boolean): Promise<void> {
    this.statistics = statistics;
    if (expanded.join("\n") !== this.expanded.join("\n")) {
      this.expanded = expanded;
      await this.requestGraph();
    }
    this.follower.restart();
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
    const existing = this.breakpoints().filter(({ location }) => location.range.start.line === line - 1);
    if (existing.length) {
      vscode.debug.removeBreakpoints(existing);
    } else {
      const location = new vscode.Location(uriOf(this.graph.source, this.session), new vscode.Position(line - 1, 0));
      vscode.debug.addBreakpoints([new vscode.SourceBreakpoint(location)]);
    }
  }

  private sendBreakpoints(): void {
    this.page?.send({ kind: "breakpoints", lines: this.breakpoints().map(({ location }) => location.range.start.line + 1) });
  }

  dispose(): void {
    this.listener.dispose();
    this.panel?.dispose();
  }
}
