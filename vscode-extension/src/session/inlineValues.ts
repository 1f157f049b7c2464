// Values in the text while the program is stopped: at the ends of lines, or behind the outputs of long ones, and on hover.

import * as vscode from "vscode";
import { VALUE_NAME, selectedFrameId } from "./commands";
import type { Connections } from "./connections";

const TYPE = "nncdbg";
/** Events after which known values are stale. */
const MOVED = new Set(["continued", "invalidated", "terminated"]);

/** Lines of program text with more columns have their values behind the outputs, so that an editor of 100 columns shows them. */
const LONG_LINE = 60;
const LISTING = "nnc";

interface LineText {
  line: number;
  text: string;
}

interface Lines {
  frameId: number;
  lines: LineText[];
}

/** Lines of the listing, or with `source` of the user's own file. */
interface LineRange {
  start: number;
  end: number;
  source?: { path?: string; sourceReference?: number };
}

/** Sends one request for the visible lines when the program stops, before VS Code requests their values. */
export class InlineValues implements vscode.InlineValuesProvider, vscode.DebugAdapterTrackerFactory, vscode.Disposable {
  /** The lines that were visible last. */
  private visible: LineRange | undefined;
  /** Their values at this stop. */
  private early: { session: vscode.DebugSession; range: LineRange; lines: Promise<Lines | undefined> } | undefined;
  private readonly provided = new vscode.EventEmitter<vscode.DebugSession>();
  private readonly inside = vscode.window.createTextEditorDecorationType({
    after: {
      color: new vscode.ThemeColor("editor.inlineValuesForeground"),
      backgroundColor: new vscode.ThemeColor("editor.inlineValuesBackground"),
      margin: "0 0 0 1ch",
    },
    rangeBehavior: vscode.DecorationRangeBehavior.ClosedClosed,
  });
  /** VS Code has received the values of the visible lines. */
  readonly onProvided = this.provided.event;

  constructor(private readonly connections: Connections) {}

  createDebugAdapterTracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    return {
      onDidSendMessage: (message) => {
        if (message.event === "stopped") {
          this.requestEarly(session);
        } else if (MOVED.has(message.event)) {
          this.early = undefined;
          this.showInside(vscode.window.visibleTextEditors, []);
        }
      },
    };
  }

  private requestEarly(session: vscode.DebugSession): void {
    const range = this.visible;
    if (range) {
      // An error means that the program has moved on: VS Code requests the values of the next stop.
      const lines = this.connections.request<Lines>(session, "nncdbg/lines", range).body.catch(() => undefined);
      this.early = { session, range, lines };
    }
  }

  async provideInlineValues(
    document: vscode.TextDocument,
    view: vscode.Range,
    context: vscode.InlineValueContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineValue[]> {
    const session = vscode.debug.activeDebugSession;
    if (session?.type !== TYPE) {
      return [];
    }
    const source = sourceOf(document);
    const range = (this.visible = { start: view.start.line + 1, end: view.end.line + 1, ...(source && { source }) });
    const lines = (await this.earlyLines(session, range, context.frameId)) ?? (await this.linesOf(session, { ...range, frameId: context.frameId }, token));
    setImmediate(() => this.provided.fire(session));
    const shown = lines
      .filter(({ line }) => line >= range.start && line <= Math.min(range.end, document.lineCount))
      .map(({ line, text }) => ({ range: document.lineAt(line - 1).range, text }));
    const atEnds: vscode.InlineValue[] = [];
    const inside: vscode.DecorationOptions[] = [];
    for (const { range, text } of shown) {
      const outputs = document.languageId === LISTING && range.end.character > LONG_LINE ? outputsOf(document, range) : undefined;
      if (outputs) {
        inside.push({ range: outputs, renderOptions: { after: { contentText: text } } });
      } else {
        atEnds.push(new vscode.InlineValueText(range, text));
      }
    }
    const editors = vscode.window.visibleTextEditors.filter((editor) => editor.document === document);
    this.showInside(editors, inside);
    return atEnds;
  }

  dispose(): void {
    this.inside.dispose();
    this.provided.dispose();
  }

  private showInside(editors: readonly vscode.TextEditor[], values: vscode.DecorationOptions[]): void {
    for (const editor of editors) {
      editor.setDecorations(this.inside, values);
    }
  }

  /** The early values, if they are of this frame and include all visible lines. */
  private async earlyLines(session: vscode.DebugSession, range: LineRange, frameId: number): Promise<LineText[] | undefined> {
    const early = this.early;
    const other = JSON.stringify(early?.range.source) !== JSON.stringify(range.source);
    if (early?.session !== session || other || range.start < early.range.start || range.end > early.range.end) {
      return undefined;
    }
    const found = await early.lines;
    return found?.frameId === frameId && early === this.early ? found.lines : undefined;
  }

  /** The values of a frame; none if the request was canceled or the program has left the frame. */
  private async linesOf(session: vscode.DebugSession, argument: { frameId: number }, token: vscode.CancellationToken) {
    const { body, cancel } = this.connections.request<Lines>(session, "nncdbg/lines", argument);
    const listener = token.onCancellationRequested(cancel);
    try {
      return (await body).lines;
    } catch (error) {
      if (token.isCancellationRequested || selectedFrameId() !== argument.frameId) {
        return [];
      }
      throw error;
    } finally {
      listener.dispose();
    }
  }
}

/** The outputs at the start of a statement; undefined for headers and ends of graphs and blocks. */
function outputsOf(document: vscode.TextDocument, line: vscode.Range): vscode.Range | undefined {
  const outputs = /^\s*[%_].*?(?= = )/.exec(document.getText(line));
  return outputs ? new vscode.Range(line.start, line.start.translate(0, outputs[0].length)) : undefined;
}

/** The user's own file that a document shows; undefined for a listing. */
function sourceOf(document: vscode.TextDocument): LineRange["source"] {
  if (document.languageId !== "python") {
    return undefined;
  }
  const reference = new URLSearchParams(document.uri.query).get("ref");
  return document.uri.scheme === "debug" && reference !== null ? { sourceReference: Number(reference) } : { path: document.uri.fsPath };
}

export class EvaluatableValues implements vscode.EvaluatableExpressionProvider {
  provideEvaluatableExpression(document: vscode.TextDocument, position: vscode.Position): vscode.EvaluatableExpression | undefined {
    const range = document.getWordRangeAtPosition(position, VALUE_NAME);
    return range && new vscode.EvaluatableExpression(range, document.getText(range));
  }
}
