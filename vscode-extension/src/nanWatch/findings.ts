// Findings in VS Code: a diagnostic for each, and a test message for each that fails a gate.

import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import type { CallSite, Finding } from "./command";

export const DEBUG = "nncdbg.watch.debug";
export const OPEN_BUNDLE = "nncdbg.watch.openBundle";
const SOURCE = "nncdbg watch";

/** The text of a report's line numbers: the graph text, or the listing of a model. */
export class ProgramText {
  private constructor(
    readonly uri: vscode.Uri,
    private readonly lines: readonly string[],
    private readonly folder: string,
  ) {}

  static async read(file: string, folder: string): Promise<ProgramText> {
    return new ProgramText(vscode.Uri.file(file), (await readFile(file, "utf8")).split(/\r?\n/), folder);
  }

  /** The statement on a line, from 1; by default the first line. */
  locationOf(line: number | null | undefined): vscode.Location {
    const row = Math.min(Math.max((line ?? 1) - 1, 0), this.lines.length - 1);
    const text = this.lines[row] ?? "";
    const start = text.length - text.trimStart().length;
    return new vscode.Location(this.uri, new vscode.Range(row, start, row, text.trimEnd().length));
  }

  /** The statement in the user's source, if the model names an existing file. */
  sourceOf({ location }: Finding): vscode.Location | undefined {
    const file = location && path.resolve(this.folder, location.file);
    return file && existsSync(file) ? new vscode.Location(vscode.Uri.file(file), new vscode.Position(location.line - 1, 0)) : undefined;
  }
}

const SEVERITIES = vscode.DiagnosticSeverity;

/** Error: fails a gate.  Warning: affects an output. */
function severityOf({ trips, reaches_output: reaches }: Finding): vscode.DiagnosticSeverity {
  return trips ? SEVERITIES.Error : reaches ? SEVERITIES.Warning : SEVERITIES.Information;
}

/** One diagnostic for each finding, with the origin of a propagated one. */
export function diagnosticsOf(findings: readonly Finding[], text: ProgramText): vscode.Diagnostic[] {
  return findings.map((finding) => {
    const { range } = text.locationOf(finding.line);
    const diagnostic = new vscode.Diagnostic(range, linesOf(finding).join("\n"), severityOf(finding));
    diagnostic.source = SOURCE;
    diagnostic.code = finding.kind;
    diagnostic.relatedInformation = related(finding, findings, text);
    return diagnostic;
  });
}

function linesOf({ message, cause, evidence, hint }: Finding): string[] {
  const reason = [cause, evidence].filter(Boolean).join(": ");
  return [message, reason && `cause: ${reason}`, hint && `hint: ${hint}`].filter(Boolean);
}

function related(finding: Finding, findings: readonly Finding[], text: ProgramText): vscode.DiagnosticRelatedInformation[] {
  const note = (location: vscode.Location, message: string) => new vscode.DiagnosticRelatedInformation(location, message);
  const { other } = finding;
  const source = text.sourceOf(finding);
  const origin = finding.role === "birth" ? undefined : findings.find((each) => each.kind === finding.kind && each.role === "birth");
  return [
    ...finding.calls.map((call) => note(text.locationOf(call.line), callOf(call))),
    ...(other ? [note(text.locationOf(other.line), `because of ${other.op}`)] : []),
    ...(origin ? [note(text.locationOf(origin.line), origin.message)] : []),
    ...(source ? [note(source, "source of this statement")] : []),
  ];
}

function callOf({ graph, op }: CallSite): string {
  return `called by @${graph} (${op})`;
}

/** The message of a finding, with links to its source, a debug session and the repro bundle. */
export function messageOf(finding: Finding, text: ProgramText, model: string, bundle: string | undefined): vscode.TestMessage {
  const statement = text.locationOf(finding.line);
  const source = text.sourceOf(finding);
  const markdown = new vscode.MarkdownString();
  markdown.isTrusted = { enabledCommands: [DEBUG, OPEN_BUNDLE, "vscode.open"] };
  linesOf(finding).forEach((line) => markdown.appendText(line).appendMarkdown("  \n"));
  const links = [
    link(`Open line ${statement.range.start.line + 1}`, "vscode.open", statement.uri, { selection: statement.range }),
    source && link(`${path.basename(source.uri.fsPath)}:${finding.location?.line}`, "vscode.open", source.uri, { selection: source.range }),
    link("Debug: stop at the origin", DEBUG, model, finding.kind),
    bundle && link("Open the repro bundle", OPEN_BUNDLE, bundle),
  ];
  markdown.appendMarkdown(`\n\n${links.filter(Boolean).join(" · ")}`);
  const message = new vscode.TestMessage(markdown);
  message.location = statement;
  message.stackTrace = [
    new vscode.TestMessageStackFrame(`@${finding.graph}: ${finding.op}`, statement.uri, statement.range.start),
    ...finding.calls.map((call) => {
      const at = text.locationOf(call.line);
      return new vscode.TestMessageStackFrame(`@${call.graph}: ${call.op}`, at.uri, at.range.start);
    }),
  ];
  return message;
}

function link(text: string, command: string, ...parameters: unknown[]): string {
  return `[${text.replace(/[\\[\]]/g, "\\$&")}](command:${command}?${encodeURIComponent(JSON.stringify(parameters))})`;
}
