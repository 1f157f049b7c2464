// Models in the Test Explorer: a run is `nncdbg watch`.  It passes if no gate fails.  Findings are messages and diagnostics.

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import { asModel, currentModel, launchOf } from "../session/configurations";
import { listingOf, modelOfListing, programOf } from "../model/listing";
import { type Finding, type Report, WatchError, runWatch } from "./command";
import { type LaunchConfiguration, configurationFor, optionsOf } from "./configuration";
import { ProgramText, diagnosticsOf, messageOf } from "./findings";
import { ENVIRONMENT, literal, NNCDBG } from "../environment/process";
import { Missing, NotInstalled, offer, readyPython } from "../environment/python";

const MODELS = "**/*.{onnx,nnc,pt2}";
const EXCLUDED = "**/{.*,node_modules,site-packages,__pycache__}/**";
/** The most models that are listed; others are added when they are opened. */
const MOST_LISTED = 1000;
/** Kinds of findings that stop a session; other kinds are known only at the end of the run. */
const CATCHABLE = new Set(["nan", "inf", "uninitialized", "integer", "contract", "overflow", "guard"]);

export class NanWatch implements vscode.Disposable {
  private readonly problems = vscode.languages.createDiagnosticCollection("nncdbg watch");
  /** The text with the diagnostics of each model. */
  private readonly marked = new Map<string, vscode.Uri>();

  constructor(
    private readonly controller: vscode.TestController,
    private readonly profile: vscode.TestRunProfile,
    private readonly storage: vscode.Uri,
  ) {}

  /** Lists the models of the workspace. */
  async find(token?: vscode.CancellationToken): Promise<void> {
    const files = await vscode.workspace.findFiles(MODELS, EXCLUDED, MOST_LISTED, token);
    files.forEach((each) => this.add(each.fsPath));
  }

  /** Lists the model of an open graph text. */
  async addDocument(document: vscode.TextDocument): Promise<void> {
    if (document.uri.scheme === "file") {
      this.add((await modelOfListing(document.uri.fsPath)) ?? document.uri.fsPath);
    }
  }

  private add(model: string): vscode.TestItem {
    const uri = vscode.Uri.file(model);
    const known = this.controller.items.get(uri.toString());
    if (known) {
      return known;
    }
    const item = this.controller.createTestItem(uri.toString(), vscode.workspace.asRelativePath(uri), uri);
    this.controller.items.add(item);
    return item;
  }

  /** Watches one model, by default the open one. */
  async watchModel(file?: vscode.Uri): Promise<void> {
    const model = file ? await asModel(file.fsPath) : await currentModel();
    if (!model) {
      void vscode.window.showInformationMessage("nncdbg: open an .onnx model, a .pt2 file or graph text (.nnc) to watch it.");
      return;
    }
    await vscode.commands.executeCommand("workbench.view.testing.focus");
    const tokens = new vscode.CancellationTokenSource();
    await this.run(new vscode.TestRunRequest([this.add(model)], undefined, this.profile), tokens.token);
    tokens.dispose();
  }

  /** Watches the chosen models, one after the other. */
  async run(request: vscode.TestRunRequest, token: vscode.CancellationToken, debug = false): Promise<void> {
    const run = this.controller.createTestRun(request);
    const abort = new AbortController();
    const listeners = [token, run.token].map((each) => each.onCancellationRequested(() => abort.abort()));
    const items = this.chosen(request);
    items.forEach((item) => run.enqueued(item));
    try {
      for (const item of items) {
        const report = abort.signal.aborted ? undefined : await this.judge(item, run, abort.signal);
        const failing = report?.findings.find((each) => each.trips);
        if (debug && failing && item.uri) {
          await this.debug(item.uri.fsPath, failing.kind);
        }
      }
    } finally {
      listeners.forEach((each) => void each.dispose());
      run.end();
    }
  }

  private chosen({ include, exclude = [] }: vscode.TestRunRequest): vscode.TestItem[] {
    const all = include ?? [...this.controller.items].map(([, item]) => item);
    return all.filter((each) => !exclude.includes(each));
  }

  /** The report of one model; undefined after an error, which the run shows. */
  private async judge(item: vscode.TestItem, run: vscode.TestRun, cancel: AbortSignal): Promise<Report | undefined> {
    const model = (item.uri as vscode.Uri).fsPath;
    this.clear(model);
    run.started(item);
    const start = Date.now();
    const duration = () => Date.now() - start;
    try {
      const report = await this.watch(model, (text) => run.appendOutput(text.replace(/\r?\n/g, "\r\n"), undefined, item), cancel);
      const text = report.findings.length ? await this.showDiagnostics(model, report) : undefined;
      const bundle = this.bundleOf(model);
      const message = (each: Finding) => messageOf(each, text as ProgramText, model, existsSync(bundle) ? bundle : undefined);
      const messages = report.findings.filter(({ trips }) => trips).map(message);
      if (report.status === "ok") {
        run.passed(item, duration());
      } else if (report.status === "not checked") {
        run.skipped(item); // The output names the gates that were not checked.
      } else {
        run.failed(item, messages, duration());
      }
      return report;
    } catch (error) {
      if (cancel.aborted) {
        run.skipped(item);
      } else {
        run.errored(item, await this.errorMessage(model, error as Error), duration());
      }
      return undefined;
    }
  }

  private async watch(model: string, reportOutput: (text: string) => void, cancel: AbortSignal): Promise<Report> {
    const folder = folderOf(model);
    const launch = launchIn(model, folder);
    const settings = vscode.workspace.getConfiguration("nncdbg.watch", vscode.Uri.file(model));
    const bundle = this.bundleOf(model);
    await rm(bundle, { recursive: true, force: true });
    const gates = settings.get<string[]>("failOn", []);
    const options = ["--json", "--bundle", bundle, ...(gates.length ? [`--fail-on=${gates.join(",")}`] : []), ...optionsOf(launch)];
    const command = {
      python: await readyPython(vscode.Uri.file(folder)),
      arguments: [...NNCDBG, "watch", programOf(model), ...options],
      cwd: launch.cwd ?? folder,
      env: { ...process.env, ...ENVIRONMENT },
      limit: settings.get("timeLimit", 300),
    };
    return runWatch(command, reportOutput, cancel);
  }

  /** Shows the findings as diagnostics of the model's text. */
  private async showDiagnostics(model: string, report: Report): Promise<ProgramText> {
    const text = await programTextOf(model);
    this.problems.set(text.uri, diagnosticsOf(report.findings, text));
    this.marked.set(model, text.uri);
    return text;
  }

  private clear(model: string): void {
    const uri = this.marked.get(model);
    if (uri) {
      this.problems.delete(uri);
      this.marked.delete(model);
    }
  }

  private async errorMessage(model: string, error: Error): Promise<vscode.TestMessage> {
    if (error instanceof Missing && !(error instanceof NotInstalled)) {
      void offer(vscode.window.showErrorMessage, error);
    }
    const message = new vscode.TestMessage(error.message);
    if (error instanceof WatchError && error.line) {
      message.location = (await programTextOf(model)).locationOf(error.line);
    }
    return message;
  }

  /** Debugs a model up to the first finding of a kind, with the configuration of the watch. */
  async debug(model: string, kind: string): Promise<void> {
    const folder = folderOf(model);
    const stops = CATCHABLE.has(kind) ? { stopOnEntry: false, catch: [kind] } : { stopOnEntry: true };
    const configuration = { ...launchIn(model, folder), ...stops };
    await vscode.debug.startDebugging(vscode.workspace.getWorkspaceFolder(vscode.Uri.file(model)), configuration);
  }

  /** Debugs a repro bundle, which opens at its finding. */
  async openBundle(bundle: string): Promise<void> {
    const name = `Debug ${path.basename(bundle)}`;
    const launch = { type: "nncdbg", request: "launch", name, program: literal(bundle), stopOnEntry: true };
    await vscode.debug.startDebugging(vscode.workspace.workspaceFolders?.[0], launch);
  }

  private bundleOf(model: string): string {
    const key = createHash("sha256").update(model).digest("hex").slice(0, 12);
    return path.join(this.storage.fsPath, "bundles", `${path.parse(model).name}-${key}`);
  }


  dispose(): void {
    this.problems.dispose();
  }
}

function folderOf(model: string): string {
  return vscode.workspace.getWorkspaceFolder(vscode.Uri.file(model))?.uri.fsPath ?? path.dirname(model);
}

function launchIn(model: string, folder: string): LaunchConfiguration {
  const settings = vscode.workspace.getConfiguration("launch", vscode.Uri.file(model));
  return configurationFor(model, folder, settings.get<LaunchConfiguration[]>("configurations", [])) ?? (launchOf(model) as unknown as LaunchConfiguration);
}

async function programTextOf(model: string): Promise<ProgramText> {
  const file = model.endsWith(".nnc") ? model : await listingOf(vscode.Uri.file(model));
  return ProgramText.read(file, folderOf(model));
}
