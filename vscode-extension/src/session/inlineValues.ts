// What is shown in the text while stopped: values at the ends of lines, and what a hover evaluates.

import * as vscode from "vscode";
import type { Wires } from "./connections";

const TYPE = "nncdbg";
/** After these the values at hand are those of another moment. */
const MOVED = new Set(["continued", "invalidated", "terminated"]);
const VALUE = /%(?:[A-Za-z_][\w.]*::)?(?:"(?:[^"\\]|\\.)*"|[A-Za-z0-9_/.$]+)/;

interface LineText {
  line: number;
  text: string;
}

interface Lines {
  frameId: number;
  lines: LineText[];
}

interface Range {
  start: number;
  end: number;
}

/** One request for the lines in view.  It is made when the program stops, before VS Code asks for them. */
export class InlineValues implements vscode.InlineValuesProvider, vscode.DebugAdapterTrackerFactory, vscode.Disposable {
  /** The lines that were in view last, and what was answered for them at this stop. */
  private seen: Range | undefined;
  private early: { session: vscode.DebugSession; range: Range; lines: Promise<Lines | undefined> } | undefined;

  private readonly given = new vscode.EventEmitter<vscode.DebugSession>();
  /** VS Code has been given the values of the lines in view. */
  readonly onGiven = this.given.event;

  constructor(private readonly wires: Wires) {}

  createDebugAdapterTracker(session: vscode.DebugSession): vscode.DebugAdapterTracker {
    return {
      onDidSendMessage: (message) => {
        if (message.event === "stopped") {
          this.askEarly(session);
        } else if (MOVED.has(message.event)) {
          this.early = undefined;
        }
      },
    };
  }

  private askEarly(session: vscode.DebugSession): void {
    const range = this.seen;
    if (range) {
      // Where the program has moved on meanwhile, VS Code asks for another stop.
      const lines = this.wires.ask<Lines>(session, "nncdbg/lines", range).body.catch(() => undefined);
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
    const range = (this.seen = { start: view.start.line + 1, end: view.end.line + 1 });
    const lines = (await this.known(session, range, context.frameId)) ?? (await this.linesOf(session, { ...range, frameId: context.frameId }, token));
    setImmediate(() => this.given.fire(session));
    return lines
      .filter(({ line }) => line >= range.start && line <= Math.min(range.end, document.lineCount))
      .map(({ line, text }) => new vscode.InlineValueText(document.lineAt(line - 1).range, text));
  }

  dispose(): void {
    this.given.dispose();
  }

  /** What was asked for early, if it is of this frame and has all that is in view. */
  private async known(session: vscode.DebugSession, range: Range, frameId: number): Promise<LineText[] | undefined> {
    const early = this.early;
    if (early?.session !== session || range.start < early.range.start || range.end > early.range.end) {
      return undefined;
    }
    const found = await early.lines;
    return found?.frameId === frameId && early === this.early ? found.lines : undefined;
  }

  /** Of a stop that is over nothing is shown: its frame is gone by then, or the request was canceled. */
  private async linesOf(session: vscode.DebugSession, asked: { frameId: number }, token: vscode.CancellationToken) {
    const { body, abandon } = this.wires.ask<Lines>(session, "nncdbg/lines", asked);
    const listener = token.onCancellationRequested(abandon);
    try {
      return (await body).lines;
    } catch (error) {
      const item = vscode.debug.activeStackItem;
      const there = item instanceof vscode.DebugStackFrame && item.frameId === asked.frameId;
      if (token.isCancellationRequested || !there) {
        return [];
      }
      throw error;
    } finally {
      listener.dispose();
    }
  }
}

export class EvaluatableValues implements vscode.EvaluatableExpressionProvider {
  provideEvaluatableExpression(
    document: vscode.TextDocument,
    position: vscode.Position,
  ): vscode.EvaluatableExpression | undefined {
    const range = document.getWordRangeAtPosition(position, VALUE);
    return range && new vscode.EvaluatableExpression(range, document.getText(range));
  }
}
