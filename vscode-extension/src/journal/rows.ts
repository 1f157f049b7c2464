// The rows of the view *Runs*: journals, their runs with the forks of each, checkpoints and events.

import * as path from "node:path";
import * as vscode from "vscode";
import type { Journal } from "./journal";
import { type Checkpoint, type Run, type RunEvent, type RunStatus, type Track, numberOf } from "./log";

export type Row = { journal: Journal; id: string } & (
  | { kind: "journal" | "error" | "empty" }
  | { kind: "run" | "checkpoints"; run: Run }
  | { kind: "checkpoint"; run: Run; checkpoint: Checkpoint }
  | { kind: "event"; run: Run; event: RunEvent; last: RunEvent }
);

/** The row of a journal. */
export const journalRow = (journal: Journal): Row => ({ kind: "journal", journal, id: journal.file });

/** The rows below another. */
export function childrenOf(row: Row): Row[] {
  const { journal } = row;
  switch (row.kind) {
    case "journal":
      return rowsOfJournal(journal);
    case "run":
      return rowsOfRun(journal, row.run);
    case "checkpoints":
      return ownCheckpoints(row.run).map((checkpoint) => ({ kind: "checkpoint", journal, run: row.run, checkpoint, id: `${row.id}/${checkpoint.step}` }));
    default:
      return [];
  }
}

function rowsOfJournal(journal: Journal): Row[] {
  const { log, error, file } = journal;
  const failed: Row[] = error ? [{ kind: "error", journal, id: `${file}/error` }] : [];
  if (!log) {
    return failed;
  }
  const numbers = new Set(log.runs.map(({ number }) => number));
  const first = log.runs.filter(({ parent }) => parent === null || !numbers.has(parent));
  const empty: Row[] = log.runs.length || error ? [] : [{ kind: "empty", journal, id: `${file}/empty` }];
  return [...failed, ...first.map((run) => runRow(journal, run)), ...empty];
}

function runRow(journal: Journal, run: Run): Row {
  return { kind: "run", journal, run, id: `${journal.file}#${run.number}` };
}

function rowsOfRun(journal: Journal, run: Run): Row[] {
  const id = `${journal.file}#${run.number}`;
  const events = stretchesOf(run.events).map(([event, last], index): Row => ({ kind: "event", journal, run, event, last, id: `${id}/event ${index}` }));
  const checkpoints: Row[] = ownCheckpoints(run).length ? [{ kind: "checkpoints", journal, run, id: `${id}/checkpoints` }] : [];
  const forks = journal.log?.runs.filter(({ parent }) => parent === run.number) ?? [];
  return [...events, ...checkpoints, ...forks.map((fork) => runRow(journal, fork))];
}

/** The checkpoints of a run without those of its parents. */
function ownCheckpoints({ number, checkpoints }: Run): Checkpoint[] {
  return checkpoints.filter(({ run }) => run === number);
}

/** The first and the last of events of one kind at consecutive steps: a NaN stays in the parameters. */
function stretchesOf(events: readonly RunEvent[]): [RunEvent, RunEvent][] {
  const stretches: [RunEvent, RunEvent][] = [];
  for (const event of events) {
    const stretch = stretches.at(-1);
    const next = stretch?.[1].step;
    if (stretch && stretch[1].kind === event.kind && typeof next === "number" && event.step === next + 1) {
      stretch[1] = event;
    } else {
      stretches.push([event, event]);
    }
  }
  return stretches;
}

/** The step of a row, which can be opened; undefined for rows without one. */
export function stepOf(row: Row): number | undefined {
  return row.kind === "checkpoint" ? row.checkpoint.step : row.kind === "event" ? (row.event.step ?? undefined) : undefined;
}

const { None, Collapsed, Expanded } = vscode.TreeItemCollapsibleState;

/** `alone`: the journal is the only one. */
export function itemOf(row: Row, alone: boolean): vscode.TreeItem {
  const item = itemOfKind(row, alone);
  item.id = row.id;
  return item;
}

function itemOfKind(row: Row, alone: boolean): vscode.TreeItem {
  switch (row.kind) {
    case "journal":
      return itemOfJournal(row.journal, alone);
    case "error":
      return plain(row.journal.error.split("\n")[0], "error", { tooltip: row.journal.error });
    case "empty":
      return plain("no run yet", "info");
    case "run":
      return itemOfRun(row, rowsOfRun(row.journal, row.run).length > 0);
    case "checkpoints":
      return { ...plain("Checkpoints", "history", { description: String(ownCheckpoints(row.run).length) }), collapsibleState: Collapsed };
    case "checkpoint":
      return itemOfCheckpoint(row.checkpoint);
    case "event":
      return itemOfEvent(row.event, row.last);
  }
}

function plain(label: string, icon: string, more: Partial<vscode.TreeItem> = {}): vscode.TreeItem {
  return Object.assign(new vscode.TreeItem(label, None), { iconPath: new vscode.ThemeIcon(icon) }, more);
}

function itemOfJournal({ file, log }: Journal, alone: boolean): vscode.TreeItem {
  const folder = vscode.workspace.asRelativePath(path.dirname(file));
  const runs = log ? counted(log.runs.length, "run") : "";
  const place = folder === path.dirname(file) ? "" : folder;
  const description = [runs, place].filter(Boolean).join(", ");
  return Object.assign(plain(path.basename(file), "book", { description, tooltip: file, contextValue: "journal" }), {
    collapsibleState: alone ? Expanded : Collapsed,
  });
}

const STATUS_ICONS: Record<RunStatus, [string, string?]> = {
  running: ["sync~spin"],
  ended: ["pass", "testing.iconPassed"],
  failed: ["error", "testing.iconFailed"],
  interrupted: ["debug-pause"],
  lost: ["warning", "list.warningForeground"],
};

/** A run that has ended, but whose loss is not finite. */
const ABNORMAL: [string, string] = ["warning", "testing.iconFailed"];

function isAbnormal(run: Run): boolean {
  const last = lossOf(run)?.values.at(-1);
  return last !== undefined && !Number.isFinite(numberOf(last));
}

function itemOfRun(row: Extract<Row, { kind: "run" | "checkpoints" }>, hasRows: boolean): vscode.TreeItem {
  const { run } = row;
  const [icon, color] = run.status === "ended" && isAbnormal(run) ? ABNORMAL : STATUS_ICONS[run.status] ?? ["circle-outline"];
  const item = new vscode.TreeItem(titleOf(run), hasRows ? Expanded : None);
  item.iconPath = new vscode.ThemeIcon(icon, color === undefined ? undefined : new vscode.ThemeColor(color));
  item.description = descriptionOf(run);
  item.tooltip = [titleOf(run), item.description, `${run.kind}, started ${dateOf(run.started)}`].join("\n");
  item.contextValue = "run";
  item.accessibilityInformation = { label: `Run ${run.number} ${run.name}, ${item.description}` };
  item.command = { command: "nncdbg.runs.showCurves", title: "Show Run Curves", arguments: [row] };
  return item;
}

function itemOfCheckpoint({ step, epoch, bytes }: Checkpoint): vscode.TreeItem {
  const details = [...(epoch === null ? [] : [`epoch ${epoch}`]), bytesText(bytes)].join(", ");
  return plain(`Step ${step}`, "save", { description: details, contextValue: "step", tooltip: `Checkpoint at the start of step ${step}\n${details}` });
}

const EVENT_ICONS: Record<string, [string, string]> = {
  nan: ["error", "testing.iconFailed"],
  inf: ["error", "testing.iconFailed"],
  exception: ["error", "testing.iconFailed"],
  signal: ["debug-disconnect", "foreground"],
  spike: ["warning", "list.warningForeground"],
};

/** The names of kinds that are not words. */
const EVENT_NAMES: Record<string, string> = { nan: "NaN", inf: "Inf" };

function itemOfEvent({ kind, step, message }: RunEvent, last: RunEvent): vscode.TreeItem {
  const [icon, color] = EVENT_ICONS[kind] ?? ["info", "foreground"];
  const place = step === null ? "" : last.step === step ? ` at step ${step}` : ` at steps ${step} to ${last.step}`;
  const item = plain(`${EVENT_NAMES[kind] ?? kind}${place}`, icon, { description: message.split("\n")[0], tooltip: message });
  item.iconPath = new vscode.ThemeIcon(icon, new vscode.ThemeColor(color));
  item.contextValue = step === null ? "event" : "step";
  return item;
}

export function titleOf({ number, name }: Run): string {
  return name ? `#${number} ${name}` : `#${number}`;
}

/** Status, steps and last loss. */
export function descriptionOf(run: Run): string {
  const fork = run.parent === null ? [] : [`fork of #${run.parent} at step ${run.parent_step}`];
  const loss = lossOf(run);
  const last = loss?.values.at(-1);
  const value = loss && last !== undefined ? [`${loss.name} ${shortNumber(numberOf(last))}`] : [];
  return [run.status, ...fork, counted(run.steps, "step"), ...value].join(", ");
}

/** The track that describes a training best: the first with a loss in its name, else the first. */
function lossOf({ tracks }: Run): Track | undefined {
  const training = tracks.filter(({ part }) => part === "train");
  return training.find(({ name }) => /loss/i.test(name)) ?? training[0];
}

function shortNumber(value: number): string {
  return Number.isFinite(value) ? String(Number(value.toPrecision(4))) : Number.isNaN(value) ? "NaN" : value > 0 ? "Inf" : "-Inf";
}

function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? "" : "s"}`;
}

/** Powers of 1024, with the units of `--checkpoint-budget`. */
export function bytesText(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${Number((bytes / 1024 ** power).toPrecision(power ? 3 : 4))} ${units[power]}`;
}

function dateOf(text: string): string {
  const date = new Date(text);
  return Number.isNaN(date.getTime()) ? text : date.toLocaleString();
}
