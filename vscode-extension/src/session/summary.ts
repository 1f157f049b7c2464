// How a run has ended: a message with what can be done about it, and a list of its outputs and findings.

import * as path from "node:path";
import * as vscode from "vscode";

/** The body of the event `nncdbg/summary`. */
interface Summary {
  program: string;
  outputs: Value[];
  inputs?: Value[];
  findings?: Finding[];
}

interface Value {
  name: string;
  text: string;
  kinds?: string[];
}

interface Finding {
  label: string;
  text: string;
  line?: number;
  source?: { path?: string };
}

interface Row extends vscode.QuickPickItem {
  open?(): Thenable<unknown>;
}

const WORDS: Record<string, string> = { nan: "NaN", inf: "Inf" };
const RESTART = "Restart and Stop Where It Originated";
const SHOW = "Show Outputs";

/** The key of a configuration for the value that is opened when the run has come to its end. */
const OPENS = "__opens";

export class Endings implements vscode.DebugAdapterTrackerFactory {
  createDebugAdapterTracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    const opens: string | undefined = session.configuration[OPENS];
    return {
      onDidSendMessage: (message) => {
        if (message.event === "nncdbg/summary" && !opens) {
          void tell(session, message.body);
        } else if (message.event === "stopped" && opens) {
          void this.goOn(session, opens, message.body.reason);
        }
      },
    };
  }

  /** To the end, past what stops the run on the way; there the value is opened. */
  private async goOn(session: vscode.DebugSession, value: string, reason: string): Promise<void> {
    if (reason === "exit") {
      await vscode.commands.executeCommand("nncdbg.viewTensor", { expression: value });
    } else {
      await session.customRequest("continue", { threadId: 1 });
    }
  }
}

async function tell(session: vscode.DebugSession, summary: Summary): Promise<void> {
  const bad = summary.outputs.filter((each) => each.kinds?.length);
  const kinds = [...new Set(bad.flatMap((each) => each.kinds ?? []))];
  const message = `${summary.program} has ended${bad.length ? `: ${namesOf(bad)} has ${kinds.map((kind) => WORDS[kind]).join(" and ")}` : ""}.`;
  const chosen = bad.length
    ? await vscode.window.showWarningMessage(message + inputsOf(summary), RESTART, SHOW)
    : await vscode.window.showInformationMessage(message, SHOW);
  if (chosen === RESTART) {
    // A NaN may come from an Inf, so that where both are the NaN is what is looked for.
    await again(session, { catch: kinds.slice(0, 1), stopOnEntry: false, noDebug: false });
  } else if (chosen === SHOW) {
    await list(session, summary);
  }
}

function namesOf(values: readonly Value[]): string {
  const [first, ...rest] = values;
  return rest.length ? `${first?.name} and ${rest.length} more` : `${first?.name}`;
}

function inputsOf({ inputs = [] }: Summary): string {
  return inputs.length ? ` Input ${namesOf(inputs)} already has NaN or Inf.` : "";
}

/** The same program with other keys of the configuration; a session that is still there ends first. */
async function again(session: vscode.DebugSession, changes: object): Promise<void> {
  await vscode.debug.stopDebugging(session);
  await vscode.debug.startDebugging(session.workspaceFolder, { ...session.configuration, ...changes });
}

async function list(session: vscode.DebugSession, { program, outputs, findings = [] }: Summary): Promise<void> {
  const rows: Row[] = [
    { label: "Outputs", kind: vscode.QuickPickItemKind.Separator },
    ...outputs.map((value) => ({
      label: `$(${value.kinds?.length ? "warning" : "symbol-numeric"}) ${value.name}`,
      detail: value.text,
      open: () => again(session, { stopOnEntry: false, stopOnExit: true, noDebug: false, [OPENS]: value.name }),
    })),
    { label: "Findings", kind: vscode.QuickPickItemKind.Separator },
    ...findings.map((finding) => ({
      label: `$(bug) ${finding.label}`,
      description: finding.line ? `${path.basename(finding.source?.path ?? "")} line ${finding.line}` : "",
      detail: finding.text,
      open: () => show(finding),
    })),
  ];
  const options = { title: `${program} has ended`, placeHolder: "Open an output (runs the program again), or go to a finding", matchOnDetail: true };
  await (await vscode.window.showQuickPick(rows, options))?.open?.();
}

async function show({ line = 1, source }: Finding): Promise<void> {
  if (source?.path) {
    const selection = new vscode.Range(line - 1, 0, line - 1, 0);
    await vscode.window.showTextDocument(vscode.Uri.file(source.path), { selection });
  }
}
