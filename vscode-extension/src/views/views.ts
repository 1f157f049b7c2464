// The views in the panel, and the tabs of the graph and of the streams.  A separate bundle, loaded with the first session.

import * as vscode from "vscode";
import { GraphTab } from "../graph/graphTab";
import type { VariableContext } from "../session/commands";
import type { Connections } from "../session/connections";
import { addWatch } from "../session/watchExpression";
import { StreamsTab } from "../streams/streamsTab";
import { Explain } from "./explain";
import { Followers } from "./following";
import { GraphMap } from "./map";
import { PageView } from "./pageView";
import { SessionEvents } from "./sessionEvents";
import { type Row, Timeline } from "./timeline";

export class Views implements vscode.Disposable {
  private readonly sessions: SessionEvents;
  private readonly timeline: Timeline;
  private readonly explain: Explain;
  private readonly map: GraphMap;
  private readonly graph: GraphTab;
  private readonly streams: StreamsTab;
  private readonly followers: Followers;
  private readonly disposables: vscode.Disposable[];

  constructor(extension: vscode.Uri, connections: Connections, onValues: vscode.Event<vscode.DebugSession>) {
    this.sessions = new SessionEvents(connections, onValues);
    // The container stays visible after the first session.
    void vscode.commands.executeCommand("setContext", "nncdbg.debugged", true);
    this.timeline = new Timeline(this.sessions);
    const statistics = new PageView(extension, this.sessions, "nncdbg/nearby", { name: "statistics", title: "Statistics" });
    this.explain = new Explain(extension, this.sessions);
    this.map = new GraphMap(extension, this.sessions);
    this.graph = new GraphTab(extension, this.sessions);
    this.streams = new StreamsTab(extension, this.sessions);
    const views = [this.timeline, statistics, this.explain, this.map, this.graph, this.streams];
    this.followers = new Followers(this.sessions, views.map(({ follower }) => follower));
    this.disposables = [this.followers, ...views, this.sessions];
  }

  follow(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    return this.followers.tracker(session);
  }

  /** The commands of the views, by name. */
  readonly commands: Record<string, (of: never) => Promise<void>> = {
    explain: (of: VariableContext | vscode.Uri | undefined) => this.explain.explain(of),
    "timeline.goTo": (row: Row) => this.timeline.goTo(row),
    "timeline.setMark": () => this.timeline.setMark(),
    "timeline.renameMark": (row: Row) => this.timeline.renameMark(row),
    "timeline.deleteMark": (row: Row) => this.timeline.deleteMark(row),
    addWatch,
    openGraph: () => Promise.resolve(this.graph.open()),
    showTimeline: () => Promise.resolve(this.streams.open()),
    "map.openInNetron": () => this.map.openInNetron(),
  };

  dispose(): void {
    this.disposables.forEach((each) => void each.dispose());
  }
}
