// The journals of the workspace: the view *Runs*, and a tab with curves for each journal.  A separate bundle, loaded
// with the first journal.

import * as path from "node:path";
import { setTimeout } from "node:timers/promises";
import * as vscode from "vscode";
import { onPythonChange, readyPython } from "../environment/python";
import { askStep, openStep, forkRun } from "./actions";
import { CurvesTab } from "./curvesTab";
import { isJournal } from "./files";
import { Journal } from "./journal";
import type { Run } from "./log";
import { readLog } from "./reading";
import { type Row, stepOf } from "./rows";
import { RunsTree } from "./tree";

const DATABASES = "**/*.db";
const EXCLUDED = "**/{.*,node_modules,site-packages,__pycache__}/**";
/** The most files whose header is read. */
const MOST_FILES = 1000;
/** ms between looks at a new file. */
const BEGINNING = [0, 300, 1000, 3000];

/** The place of the pointer in the page, which VS Code gives to a command of its menu. */
interface Pointed {
  file: string;
  run: number;
  step: number;
}

/** The argument of a command: a row, a file in the explorer, or a place in the page; none from the palette. */
type Target = Row | vscode.Uri | Pointed | undefined;

export class Runs implements vscode.Disposable {
  private readonly journals = new Map<string, Journal>();
  private readonly tabs = new Map<Journal, CurvesTab>();
  private readonly tree = new RunsTree();
  private readonly disposables: vscode.Disposable[] = [this.tree];

  constructor(private readonly extension: vscode.Uri) {
    void onPythonChange(() => void this.refresh()).then((listener) => this.disposables.push(listener));
  }

  /** The commands of the view, by name. */
  readonly commands: Record<string, (target: never) => Promise<void>> = {
    showCurves: (target: Target) => this.showCurves(target),
    openStep: (target: Target) => this.atStep(target, "Which step?", openStep),
    fork: (target: Target) => this.atStep(target, "Fork at the start of which step?", forkRun),
    refresh: () => this.find(),
  };

  /** Lists the journals of the workspace, and reads those that are shown. */
  async find(): Promise<void> {
    const files = await vscode.workspace.findFiles(DATABASES, EXCLUDED, MOST_FILES);
    await Promise.all(files.map((each) => this.add(each.fsPath)));
    await this.refresh();
  }

  private async refresh(): Promise<void> {
    await Promise.all([...this.journals.values()].filter(({ log, error }) => log ?? error).map((each) => each.refresh()));
  }

  /** The journal of a file, which is listed from now on; undefined if it is none. */
  private async add(file: string): Promise<Journal | undefined> {
    if (!(await isJournal(file))) {
      return undefined;
    }
    let journal = this.journals.get(file);
    if (!journal) {
      journal = new Journal(file, async () => readLog(file, await readyPython(vscode.Uri.file(file))));
      this.journals.set(file, journal);
      this.list();
    }
    return journal;
  }

  /** Lists a new file if it is a journal, which its writer may not have started yet. */
  async addNew(file: string): Promise<void> {
    for (const pause of BEGINNING) {
      await setTimeout(pause);
      if (await this.add(file)) {
        return;
      }
    }
  }

  remove(file: string): void {
    const journal = this.journals.get(file);
    if (journal) {
      this.tabs.get(journal)?.dispose();
      this.journals.delete(file);
      this.list();
      journal.dispose();
    }
  }

  private list(): void {
    const sorted = [...this.journals.values()].sort((one, other) => one.file.localeCompare(other.file));
    this.tree.show(sorted);
    void vscode.commands.executeCommand("setContext", "nncdbg.journals", sorted.length > 0);
  }

  private async showCurves(target: Target): Promise<void> {
    const journal = await this.journalOf(target);
    if (!journal) {
      return;
    }
    let tab = this.tabs.get(journal);
    if (!tab) {
      const open = (run: number, step: number) => void openStep(journal.file, run, step);
      tab = new CurvesTab(this.extension, journal, open, () => this.tabs.delete(journal));
      this.tabs.set(journal, tab);
    }
    tab.show(isRow(target) && "run" in target ? target.run.number : undefined);
  }

  /** The journal of a command's argument.  Throws if the file is no journal; undefined if the user cancels. */
  private async journalOf(target: Target): Promise<Journal | undefined> {
    if (isRow(target)) {
      return target.journal;
    }
    const file = target instanceof vscode.Uri ? target.fsPath : target?.file;
    if (file !== undefined) {
      const journal = await this.add(file);
      if (!journal) {
        throw new Error(`${path.basename(file)} is not a run journal of nncdbg`);
      }
      return journal;
    }
    return this.pickJournal();
  }

  private async pickJournal(): Promise<Journal | undefined> {
    await this.find();
    const journals = [...this.journals.values()];
    if (journals.length === 0) {
      throw new Error("the workspace has no run journal: `nncdbg run MODEL --journal run.db` writes one");
    }
    const items = journals.map((journal) => ({ label: vscode.workspace.asRelativePath(journal.file), journal }));
    return items.length === 1 ? journals[0] : (await vscode.window.showQuickPick(items, { placeHolder: "Which journal?" }))?.journal;
  }

  /** Does something at the step of a command's argument, or at one that the user enters. */
  private async atStep(target: Target, prompt: string, action: (file: string, run: number, step: number) => Promise<void>): Promise<void> {
    if (target && "step" in target) {
      await action(target.file, target.run, target.step);
      return;
    }
    const journal = await this.journalOf(target);
    const run = isRow(target) && "run" in target ? target.run : journal && (await pickRun(journal));
    const given = isRow(target) ? stepOf(target) : undefined;
    const step = given ?? (run && (await askStep(`${prompt} Run ${run.number} has ${run.steps} steps.`, run.steps)));
    if (journal && run && step !== undefined) {
      await action(journal.file, run.number, step);
    }
  }

  dispose(): void {
    [...this.tabs.values(), ...this.journals.values(), ...this.disposables].forEach((each) => void each.dispose());
  }
}

function isRow(target: Target): target is Row {
  return target !== undefined && "journal" in target;
}

async function pickRun(journal: Journal): Promise<Run | undefined> {
  if (!journal.log) {
    await journal.refresh();
  }
  if (!journal.log) {
    throw new Error(journal.error);
  }
  const items = journal.log.runs.map((run) => ({ label: `#${run.number} ${run.name}`, description: run.status, run }));
  return (await vscode.window.showQuickPick(items, { placeHolder: "Which run?" }))?.run;
}
