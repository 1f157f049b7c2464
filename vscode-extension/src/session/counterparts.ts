// From a statement of the forward pass to its backward pass, and the reverse: commands, and lenses above graphs.

import * as path from "node:path";
import * as vscode from "vscode";
import type { SourceLine } from "../pages/messages";
import { openLine } from "../views/sources";
import { currentSession, withErrorMessage } from "./commands";
import type { Connections } from "./connections";

type Direction = "backward" | "forward";

interface Counterpart {
  /** The line of the text. */
  line: number;
  direction: Direction;
  source: SourceLine["source"];
  /** The line of the other statement or graph. */
  target: number;
  text: string;
}

const GO_TO = "nncdbg.goToCounterpart";

/** The source of a document in a session: a file, or a text that the debug server sends. */
function sourceOf({ uri }: vscode.TextDocument): SourceLine["source"] {
  const reference = uri.scheme === "debug" ? Number(new URLSearchParams(uri.query).get("ref")) : 0;
  return reference ? { name: path.basename(uri.path), sourceReference: reference } : { name: path.basename(uri.path), path: uri.fsPath };
}

/** Lenses above the graphs of a session's texts, and the commands for the line of the cursor. */
export class Counterparts implements vscode.CodeLensProvider, vscode.DebugAdapterTrackerFactory, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<void>();
  readonly onDidChangeCodeLenses = this.changed.event;
  private readonly registered: vscode.Disposable[];

  constructor(
    private readonly connections: Connections,
    texts: vscode.DocumentSelector,
  ) {
    const go = (direction: Direction) => () => withErrorMessage(() => this.goToLine(direction));
    this.registered = [
      vscode.languages.registerCodeLensProvider(texts, this),
      vscode.debug.registerDebugAdapterTrackerFactory("nncdbg", this),
      vscode.debug.onDidChangeActiveDebugSession(() => this.changed.fire()),
      vscode.commands.registerCommand("nncdbg.goToBackward", go("backward")),
      vscode.commands.registerCommand("nncdbg.goToForward", go("forward")),
      vscode.commands.registerCommand(GO_TO, ({ source, target }: Counterpart) => openLine({ source, line: target }, currentSession())),
    ];
  }

  /** The graphs are known at the first stop. */
  createDebugAdapterTracker(): vscode.DebugAdapterTracker {
    let known = false;
    return {
      onDidSendMessage: ({ event }) => {
        if (event === "stopped" && !known) {
          known = true;
          this.changed.fire();
        }
      },
    };
  }

  async provideCodeLenses(document: vscode.TextDocument): Promise<vscode.CodeLens[]> {
    const session = vscode.debug.activeDebugSession;
    if (session?.type !== "nncdbg") {
      return [];
    }
    // A session that is starting, or that debugs another program, has no graphs in this text.
    const found = await this.request(session, document).catch(() => []);
    return found.map((each) => {
      const place = new vscode.Range(each.line - 1, 0, each.line - 1, 0);
      const name = /@(?:"(?:[^"\\]|\\.)*"|[\w/.$]+)/.exec(each.text)?.[0] ?? "";
      return new vscode.CodeLens(place, { title: `Go to ${each.direction} ${name}`, command: GO_TO, arguments: [each] });
    });
  }

  private async goToLine(direction: Direction): Promise<void> {
    const editor = vscode.window.activeTextEditor;
    if (!editor) {
      throw new Error("no text of the program is open");
    }
    const line = editor.selection.active.line + 1;
    const session = currentSession();
    const found = (await this.request(session, editor.document, line)).filter((each) => each.direction === direction);
    if (!found.length) {
      throw new Error(direction === "backward" ? `line ${line} is not differentiated` : `line ${line} differentiates no other line`);
    }
    await openLine({ source: found[0].source, line: found[0].target }, session);
  }

  private async request(session: vscode.DebugSession, document: vscode.TextDocument, line?: number): Promise<Counterpart[]> {
    const argument = { source: sourceOf(document), line };
    return (await this.connections.request<{ counterparts: Counterpart[] }>(session, "nncdbg/counterparts", argument).body).counterparts;
  }

  dispose(): void {
    this.changed.dispose();
    this.registered.forEach((each) => void each.dispose());
  }
}
