// The tab *Run Curves* of one journal: the tracked values of its runs over the steps.  Its page: webview/runs.

import * as path from "node:path";
import * as vscode from "vscode";
import { Page } from "../pages/page";
import type { Journal } from "./journal";
import { type Log, numberOf } from "./log";
import type { FromCurves, PageRun, ToCurves } from "./messages";

export class CurvesTab implements vscode.Disposable {
  private readonly panel: vscode.WebviewPanel;
  private readonly page: Page<FromCurves, ToCurves>;
  private readonly listener: vscode.Disposable;
  private following: vscode.Disposable | undefined;
  private ready = false;
  /** The runs that were converted last. */
  private converted: { log?: Log; runs: PageRun[] } = { runs: [] };
  /** The run that the page adds to the shown ones. */
  private chosen: number | undefined;

  constructor(
    extension: vscode.Uri,
    readonly journal: Journal,
    openStep: (run: number, step: number) => void,
    closed: () => void,
  ) {
    const title = `Curves of ${path.basename(journal.file)}`;
    this.panel = vscode.window.createWebviewPanel("nncdbg.curves", title, vscode.ViewColumn.Active, {});
    this.panel.iconPath = vscode.Uri.joinPath(extension, "media", "nnc-dark.svg");
    this.page = new Page<FromCurves, ToCurves>(this.panel.webview, extension, { name: "runs", title, libraries: ["uplot"] }, {
      ready: () => {
        this.ready = true;
        this.send();
      },
      openStep: ({ run, step }) => openStep(run, step),
    });
    this.listener = journal.onDidChange(() => this.send());
    this.panel.onDidChangeViewState(() => this.follow());
    this.panel.onDidDispose(() => {
      this.listener.dispose();
      this.following?.dispose();
      closed();
    });
    this.follow();
  }

  /** Shows the tab, with a run among the shown ones. */
  show(run?: number): void {
    this.chosen = run;
    this.panel.reveal();
    this.send();
  }

  /** VS Code discards a hidden page: it is ready again when it is shown. */
  private follow(): void {
    const { visible } = this.panel;
    if (visible && !this.following) {
      this.following = this.journal.follow();
    } else if (!visible) {
      this.ready = false;
      this.following?.dispose();
      this.following = undefined;
    }
  }

  private send(): void {
    const { log, error, file } = this.journal;
    if (!this.ready || (!log && !error)) {
      return;
    }
    if (log && log !== this.converted.log) {
      this.converted = { log, runs: log.runs.map(pageRun) };
    }
    this.page.send({ kind: "runs", file, runs: this.converted.runs, error });
    if (this.chosen !== undefined) {
      this.page.send({ kind: "choose", run: this.chosen });
      this.chosen = undefined;
    }
  }

  dispose(): void {
    this.panel.dispose();
  }
}

/** Arrays of numbers reach the page as bytes, with NaN and Inf. */
export function pageRun(run: Log["runs"][number]): PageRun {
  const { number, name, parent, parent_step, steps, status } = run;
  const tracks = run.tracks.map((track) => ({
    name: track.name,
    part: track.part,
    steps: Float64Array.from(track.steps),
    values: Float64Array.from(track.values, numberOf),
  }));
  return { number, name, parent, parent_step, steps, status, tracks };
}
