// Findings as VS Code shows them: a diagnostic for each in Problems, a test message for each that trips a gate.

import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import * as path from "node:path";
import * as vscode from "vscode";
import type { Finding, Site } from "./command";

export const DEBUG = "nncdbg.watch.debug";
export const OPEN_BUNDLE = "nncdbg.watch.openBundle";
const SOURCE = "nncdbg watch";

/** The text in which the lines of a report are counted: the graph text itself, or the listing of a model. */
export class ProgramText {
  private constructor(
    readonly uri: vscode.Uri,
    private readonly lines: readonly string[],
    private readonly folder: string,
  ) {}

  static async read(file: string, folder: string): Promise<ProgramText> {
    return new ProgramText(vscode.Uri.file(file), (await readFile(file, "utf8")).split(/\r?\n/), folder);
  }

  /** The statement on a line, from 1; the first line where the report names none. */
  place(line: number | null | undefined): vscode.Location {
    const row = Math.min(Math.max((line ?? 1) - 1, 0), this.lines.length - 1);
    const text = this.lines[row] ?? "";
    const start = text.length - text.trimStart().length;
    return new vscode.Location(this.uri, new vscode.Range(row, start, row, text.trimEnd().length));
  }

  /** Where the user's own source has the statement, if the model names a file that is there. */
  source({ location }: Finding): vscode.Location | undefined {
    const file = location && path.resolve(this.folder, location.file);
    return file && existsSync(file) ? new vscode.Location(vscode.Uri.file(file), new vscode.Position(location.line - 1, 0)) : undefined;
  }
}

const SEVERITIES = vscode.DiagnosticSeverity;

/** Errors trip a gate, warnings have an effect on an output, and the rest is for information. */
function severityOf({ trips, reaches_output: reaches }: Finding): vscode.DiagnosticSeverity {
  return trips ? SEVERITIES.Error : reaches ? SEVERITIES.Warning : SEVERITIES.Information;
}

/** One diagnostic per finding, at its statement, with the origin of what is propagated. */
export function diagnosticsOf(findings: readonly Finding[], text: ProgramText): vscode.Diagnostic[] {
  return findings.map((finding) => {
    const { range } = text.place(finding.line);
    const diagnostic = new vscode.Diagnostic(range, wordsOf(finding).join("\n"), severityOf(finding));
    diagnostic.source = SOURCE;
    diagnostic.code = finding.kind;
    diagnostic.relatedInformation = related(finding, findings, text);
    return diagnostic;
  });
}

function wordsOf({ message, cause, evidence, hint }: Finding): string[] {
  const because = [cause, evidence].filter(Boolean).join(": ");
  return [message, because && `cause: ${because}`, hint && `hint: ${hint}`].filter(Boolean);
}

function related(finding: Finding, findings: readonly Finding[], text: ProgramText): vscode.DiagnosticRelatedInformation[] {
  const note = (place: vscode.Location, words: string) => new vscode.DiagnosticRelatedInformation(place, words);
  const { other } = finding;
  const source = text.source(finding);
  const origin = finding.role === "birth" ? undefined : findings.find((each) => each.kind === finding.kind && each.role === "birth");
  return [
    ...finding.calls.map((call) => note(text.place(call.line), callOf(call))),
    ...(other ? [note(text.place(other.line), `because of ${other.op}`)] : []),
    ...(origin ? [note(text.place(origin.line), origin.message)] : []),
    ...(source ? [note(source, "source of this statement")] : []),
  ];
}

function callOf({ graph, op }: Site): string {
  return `called by @${graph} (${op})`;
}

/** The message of a finding at its statement, with links to the source, a session that stops there, and the repro bundle. */
export function messageOf(finding: Finding, text: ProgramText, model: string, bundle: string | undefined): vscode.TestMessage {
  const place = text.place(finding.line);
  const source = text.source(finding);
  const words = new vscode.MarkdownString();
  words.isTrusted = { enabledCommands: [DEBUG, OPEN_BUNDLE, "vscode.open"] };
  wordsOf(finding).forEach((line) => words.appendText(line).appendMarkdown("  \n"));
  const links = [
    link(`Open line ${place.range.start.line + 1}`, "vscode.open", place.uri, { selection: place.range }),
    source && link(`${path.basename(source.uri.fsPath)}:${finding.location?.line}`, "vscode.open", source.uri, { selection: source.range }),
    link("Debug: stop at the origin", DEBUG, model, finding.kind),
    bundle && link("Open the repro bundle", OPEN_BUNDLE, bundle),
  ];
  words.appendMarkdown(`\n\n${links.filter(Boolean).join(" · ")}`);
  const message = new vscode.TestMessage(words);
  message.location = place;
  message.stackTrace = [
    new vscode.TestMessageStackFrame(`@${finding.graph}: ${finding.op}`, place.uri, place.range.start),
    ...finding.calls.map((call) => {
      const at = text.place(call.line);
      return new vscode.TestMessageStackFrame(`@${call.graph}: ${call.op}`, at.uri, at.range.start);
    }),
  ];
  return message;
}

function link(words: string, command: string, ...given: unknown[]): string {
  return `[${words.replace(/[\\[\]]/g, "\\$&")}](command:${command}?${encodeURIComponent(JSON.stringify(given))})`;
}
