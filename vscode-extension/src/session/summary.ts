// The summary of a run that has ended: a message with actions, and a list of outputs and findings.

import * as path from "node:path";
import * as vscode from "vscode";

/** The body of the event `nncdbg/summary`. */
interface Summary {
  program: string;
  outputs: SummaryValue[];
  inputs?: SummaryValue[];
  findings?: SummaryFinding[];
}

interface SummaryValue {
  name: string;
  text: string;
  kinds?: string[];
}

interface SummaryFinding {
  label: string;
  text: string;
  line?: number;
  source?: { path?: string };
}

interface SummaryRow extends vscode.QuickPickItem {
  open?(): Thenable<unknown>;
}

const KINDS: Record<string, string> = { nan: "NaN", inf: "Inf" };
const RESTART = "Restart and Stop Where It Originated";
const SHOW = "Show Outputs";

/** The key of a configuration for the value that opens at the end of the run. */
const OPEN_AT_END = "__opens";

export class Summaries implements vscode.DebugAdapterTrackerFactory {
  createDebugAdapterTracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const value: string | undefined = session.configuration[OPEN_AT_END];
    return {
      onDidSendMessage: (message) => {
        if (message.event === "nncdbg/summary" && !value) {
          void showSummary(session, message.body);
        } else if (message.event === "stopped" && value) {
          void continueToEnd(session, value, message.body.reason);
        }
      },
    };
  }
}

/** Continues past all other stops, and opens the value at the end. */
async function continueToEnd(session: vscode.DebugSession, expression: string, reason: string): Promise<void> {
  await (reason === "exit" ? vscode.commands.executeCommand("nncdbg.viewTensor", { expression }) : session.customRequest("continue", { threadId: 1 }));
}

async function showSummary(session: vscode.DebugSession, summary: Summary): Promise<void> {
  const bad = summary.outputs.filter((each) => each.kinds?.length);
  const kinds = [...new Set(bad.flatMap((each) => each.kinds ?? []))];
  const message = `${summary.program} has ended${bad.length ? `: ${namesOf(bad)} ${have(bad)} ${kinds.map((kind) => KINDS[kind]).join(" and ")}` : ""}.`;
  const chosen = bad.length
    ? await vscode.window.showWarningMessage(message + inputsOf(summary), RESTART, SHOW)
    : await vscode.window.showInformationMessage(message, SHOW);
  if (chosen === RESTART) {
    // A NaN may originate from an Inf: with both, stop at the NaN.
    await restart(session, { catch: kinds.slice(0, 1), stopOnEntry: false, noDebug: false });
  } else if (chosen === SHOW) {
    await showList(session, summary);
  }
}

const have = (values: unknown[]): string => (values.length > 1 ? "have" : "has");

function namesOf(values: readonly SummaryValue[]): string {
  const [first, ...rest] = values;
  return rest.length ? `${first?.name} and ${rest.length} more` : `${first?.name}`;
}

function inputsOf({ inputs = [] }: Summary): string {
  return inputs.length ? ` Input ${namesOf(inputs)} already ${have(inputs)} NaN or Inf.` : "";
}

/** Starts the program again with changes to its configuration. */
async function restart(session: vscode.DebugSession, changes: object): Promise<void> {
  await vscode.debug.stopDebugging(session);
  await vscode.debug.startDebugging(session.workspaceFolder, { ...session.configuration, ...changes });
}

async function showList(session: vscode.DebugSession, { program, outputs, findings = [] }: Summary): Promise<void> {
  const rows: SummaryRow[] = [
    { label: "Outputs", kind: vscode.QuickPickItemKind.Separator },
    ...outputs.map((value) => ({
      label: `$(${value.kinds?.length ? "warning" : "symbol-numeric"}) ${value.name}`,
      detail: value.text,
      open: () => restart(session, { stopOnEntry: false, stopOnExit: true, noDebug: false, [OPEN_AT_END]: value.name }),
    })),
    { label: "Findings", kind: vscode.QuickPickItemKind.Separator },
    ...findings.map((finding) => ({
      label: `$(bug) ${finding.label}`,
      description: finding.line ? `${path.basename(finding.source?.path ?? "")} line ${finding.line}` : "",
      detail: finding.text,
      open: () => openFinding(finding),
    })),
  ];
  const options = { title: `${program} has ended`, placeHolder: "Open an output (runs the program again), or go to a finding", matchOnDetail: true };
  await (await vscode.window.showQuickPick(rows, options))?.open?.();
}

async function openFinding({ line = 1, source }: SummaryFinding): Promise<void> {
  if (source?.path) {
    const selection = new vscode.Range(line - 1, 0, line - 1, 0);
    await vscode.window.showTextDocument(vscode.Uri.file(source.path), { selection });
  }
}
