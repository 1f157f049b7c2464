// The view *Timeline*: the branches of a run as a tree, with the marks, checkpoints and edits of each.

import * as vscode from "vscode";
import { currentSession } from "../session/commands";
import { Follower, type FollowingView } from "./following";
import type { SessionEvents } from "./sessionEvents";

interface TimelineMoment {
  kind: "start" | "checkpoint" | "micro" | "edit" | "mark" | "left" | "now";
  statements: number;
  name?: string;
  line?: number;
  graph?: string;
  text?: string;
}

interface Branch {
  number: number;
  title: string;
  parent: number | null;
  current: boolean;
  moments: TimelineMoment[];
  leftOut: number;
}

interface TimelineAnswer {
  branches: Branch[];
  leftOut: number;
}

/** A row of the tree: a branch, or one of its moments. */
export interface Row {
  branch: Branch;
  moment?: TimelineMoment;
  id: string;
}

const ICONS: Record<TimelineMoment["kind"], string> = {
  start: "debug-restart",
  checkpoint: "history",
  micro: "symbol-method",
  edit: "edit",
  mark: "bookmark",
  left: "circle-outline",
  now: "debug-stackframe",
};

/** Rows that a panel of the usual height shows. */
const VISIBLE_ROWS = 8;

export class Timeline implements FollowingView, vscode.TreeDataProvider<Row>, vscode.Disposable {
  readonly request = "nncdbg/timeline";
  readonly follower: Follower;
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeTreeData = this.changed.event;
  private readonly tree: vscode.TreeView<Row>;
  private rows: Row[] = [];
  private session: vscode.DebugSession | undefined;
  /** VS Code has not yet scrolled to the current moment. */
  private unrevealed = false;

  constructor(sessions: SessionEvents) {
    this.follower = new Follower(this, sessions);
    this.tree = vscode.window.createTreeView<Row>("nncdbg.timeline", { treeDataProvider: this });
    this.tree.onDidChangeVisibility(() => this.follower.update());
  }

  get visible(): boolean {
    return this.tree.visible;
  }

  arguments(): object {
    return {};
  }

  show(answer: TimelineAnswer, session: vscode.DebugSession): void {
    this.session = session;
    this.rows = answer.branches.map((branch) => ({ branch, id: `${branch.number}` }));
    this.tree.message = answer.leftOut ? `${answer.leftOut} older branches are not shown.` : undefined;
    this.changed.fire();
    this.unrevealed = true;
  }

  /** Scrolls to the current moment, if not all rows are visible.  `reveal` would open a view that was hidden in the
   * meantime: therefore only when VS Code reads the rows. */
  private revealNow(moments: Row[]): void {
    const now = moments.find((row) => row.moment?.kind === "now");
    if (!now || moments.length < VISIBLE_ROWS || !this.unrevealed || !this.visible) {
      return;
    }
    this.unrevealed = false;
    const { rows } = this;
    this.tree.reveal(now, { select: false }).then(undefined, (error: unknown) => {
      // A new answer has replaced the row, and reveals its own.
      if (this.rows === rows) {
        throw error;
      }
    });
  }

  showStatus(text: string): void {
    this.session = undefined;
    this.rows = [];
    this.tree.message = text;
    this.changed.fire();
  }

  getChildren(row?: Row): Row[] {
    if (!row) {
      return this.rows;
    }
    const { branch } = row;
    const moments = row.moment ? [] : branch.moments.map((moment, index) => ({ branch, moment, id: idOf(branch, index) }));
    this.revealNow(moments);
    return moments;
  }

  getParent(row: Row): Row | undefined {
    return row.moment && this.rows.find((each) => each.branch === row.branch);
  }

  getTreeItem(row: Row): vscode.TreeItem {
    return row.moment ? itemOfMoment(row, row.moment) : itemOfBranch(row);
  }

  /** Goes to a moment; for a branch, to the moment at which the program left it. */
  async goTo(row: Row): Promise<void> {
    const moment = row.moment ?? row.branch.moments.find(({ kind }) => kind === "left");
    if (moment?.kind === "mark") {
      await this.send("nncdbg/marks", { action: "goto", name: moment.name });
    } else if (moment && moment.kind !== "now") {
      await this.send("nncdbg/moment", { branch: row.branch.number, statements: moment.statements });
    }
  }

  async setMark(): Promise<void> {
    const marks = this.marks();
    const value = [...marks, ""].map((_, index) => `m${index + 1}`).find((each) => !marks.includes(each));
    const name = await readName("Name of the new mark", value, marks);
    if (name) {
      await this.send("nncdbg/marks", { action: "set", name });
      this.follower.restart();
    }
  }

  async renameMark({ moment }: Row): Promise<void> {
    const others = this.marks().filter((each) => each !== moment?.name);
    const to = await readName(`New name for the mark ${moment?.name}`, moment?.name, others);
    if (to && to !== moment?.name) {
      await this.send("nncdbg/marks", { action: "rename", name: moment?.name, to });
      this.follower.restart();
    }
  }

  async deleteMark({ moment }: Row): Promise<void> {
    await this.send("nncdbg/marks", { action: "delete", name: moment?.name });
    this.follower.restart();
  }

  private marks(): (string | undefined)[] {
    const moments = this.rows.flatMap((row) => row.branch.moments);
    return moments.filter(({ kind }) => kind === "mark").map(({ name }) => name);
  }

  private async send(request: string, argument: object): Promise<void> {
    await (this.session ?? currentSession()).customRequest(request, argument);
  }

  dispose(): void {
    this.tree.dispose();
    this.changed.dispose();
  }
}

/** A moment keeps its id from stop to stop, so that the tree stays expanded. */
function idOf(branch: Branch, index: number): string {
  const { kind, statements, name } = branch.moments[index];
  const alike = branch.moments.slice(0, index).filter((each) => each.kind === kind && each.statements === statements);
  return [branch.number, kind, statements, kind === "mark" ? name : alike.length].join(":");
}

function readName(prompt: string, value: string | undefined, taken: (string | undefined)[]) {
  const validateInput = (name: string) =>
    !name.trim() ? "A mark needs a name." : taken.includes(name.trim()) ? `The mark ${name.trim()} already exists.` : "";
  return vscode.window.showInputBox({ prompt, value, validateInput }).then((name) => name?.trim());
}

function itemOfBranch({ branch, id }: Row): vscode.TreeItem {
  const { Expanded, Collapsed } = vscode.TreeItemCollapsibleState;
  const item = new vscode.TreeItem(branch.title, branch.current ? Expanded : Collapsed);
  item.id = id;
  item.iconPath = new vscode.ThemeIcon("git-branch");
  item.contextValue = branch.current ? "branch" : "otherBranch";
  const from = branch.parent === null ? "" : `, from ${branch.parent}`;
  const older = branch.leftOut ? `, ${branch.leftOut} older entries not shown` : "";
  item.description = `branch ${branch.number}${from}${older}`;
  const now = branch.current ? ", the current one" : "";
  item.accessibilityInformation = { label: `Branch ${branch.number}: ${branch.title}${now}${older}` };
  return item;
}

function itemOfMoment(row: Row, moment: TimelineMoment): vscode.TreeItem {
  const item = new vscode.TreeItem(titleOf(moment));
  const { kind } = moment;
  const color = kind === "now" ? new vscode.ThemeColor("debugIcon.breakpointCurrentStackframeForeground") : undefined;
  item.id = row.id;
  item.iconPath = new vscode.ThemeIcon(ICONS[kind], color);
  item.contextValue = kind === "mark" || kind === "now" ? kind : "moment";
  const after = moment.statements === 1 ? "after 1 statement" : `after ${moment.statements} statements`;
  const place = moment.line === undefined ? [] : [`line ${moment.line}`];
  item.description = [...place, `after ${moment.statements}`].join(", ");
  item.tooltip = moment.text === undefined ? after : `@${moment.graph}, line ${moment.line}\n${moment.text}\n${after}`;
  item.accessibilityInformation = { label: [titleOf(moment), ...place, after].join(", ") };
  if (kind !== "now") {
    item.command = { command: "nncdbg.timeline.goTo", title: "Go There", arguments: [row] };
  }
  return item;
}

function titleOf({ kind, name }: TimelineMoment): string {
  const titles: Record<TimelineMoment["kind"], string> = {
    start: "Start",
    checkpoint: "Checkpoint",
    micro: `Stepped into the micro program of ${name}`,
    edit: `${name} set`,
    mark: `${name}`,
    left: "Branch left here",
    now: "Now",
  };
  return titles[kind];
}
