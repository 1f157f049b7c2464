// The views in the panel.  A bundle of its own, loaded with the first session.

import * as vscode from "vscode";
import type { VariableContext } from "../session/commands";
import { Explain } from "./explain";
import { Stops } from "./following";
import { addWatch } from "../session/watchExpression";
import { GraphTab } from "../graph/graphTab";
import { GraphMap } from "./map";
import { Sessions } from "./sessionEvents";
import { Statistics } from "./statistics";
import { Row, Timeline } from "./timeline";
import type { Wires } from "../session/connections";

export class Views implements vscode.Disposable {
  private readonly sessions: Sessions;
  private readonly timeline: Timeline;
  private readonly statistics: Statistics;
  private readonly explain: Explain;
  private readonly map: GraphMap;
  private readonly graph: GraphTab;
  private readonly stops: Stops;

  constructor(extension: vscode.Uri, wires: Wires, given: vscode.Event<vscode.DebugSession>) {
    this.sessions = new Sessions(wires, given);
    // From the first session on the container stays, so that it is there again at the next one.
    void vscode.commands.executeCommand("setContext", "nncdbg.debugged", true);
    this.timeline = new Timeline(this.sessions);
    this.statistics = new Statistics(extension, this.sessions);
    this.explain = new Explain(extension, this.sessions);
    this.map = new GraphMap(extension, this.sessions);
    this.graph = new GraphTab(extension, this.sessions);
    const followers = [this.timeline, this.statistics, this.explain, this.map, this.graph].map((each) => each.follower);
    this.stops = new Stops(this.sessions, followers);
  }

  follow(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    return this.stops.tracker(session);
  }

  /** The commands of the views, by name. */
  readonly commands: Record<string, (of: never) => Promise<void>> = {
    explain: (of: VariableContext | vscode.Uri | undefined) => this.explain.explain(of),
    "timeline.goTo": (row: Row) => this.timeline.goTo(row),
    "timeline.setMark": () => this.timeline.setMark(),
    "timeline.renameMark": (row: Row) => this.timeline.renameMark(row),
    "timeline.deleteMark": (row: Row) => this.timeline.deleteMark(row),
    addWatch,
    openGraph: () => this.graph.open(),
    "map.openInNetron": () => this.map.openInNetron(),
  };

  dispose(): void {
    [this.stops, this.timeline, this.statistics, this.explain, this.map, this.graph, this.sessions].forEach((each) => void each.dispose());
  }
}
