// The views of the debug side bar.  A bundle of its own, loaded with the first session.

import * as vscode from "vscode";
import type { VariableContext } from "./commands";
import { Explain } from "./explain";
import { Stops } from "./following";
import { GraphMap } from "./map";
import { Sessions } from "./sessions";
import { Statistics } from "./statistics";
import { Row, Timeline } from "./timeline";
import type { Wires } from "./wires";

export class Views implements vscode.Disposable {
  private readonly sessions: Sessions;
  private readonly timeline: Timeline;
  private readonly statistics: Statistics;
  private readonly explain: Explain;
  private readonly map: GraphMap;
  private readonly stops: Stops;

  constructor(extension: vscode.Uri, wires: Wires, given: vscode.Event<vscode.DebugSession>) {
    this.sessions = new Sessions(wires, given);
    this.timeline = new Timeline(this.sessions);
    this.statistics = new Statistics(extension, this.sessions);
    this.explain = new Explain(extension, this.sessions);
    this.map = new GraphMap(extension, this.sessions);
    const followers = [this.timeline, this.statistics, this.explain, this.map].map((each) => each.follower);
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
    "map.openInNetron": () => this.map.openInNetron(),
  };

  dispose(): void {
    [this.stops, this.timeline, this.statistics, this.explain, this.map, this.sessions].forEach((each) => each.dispose());
  }
}
