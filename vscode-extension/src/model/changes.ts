// Files that change while somebody looks at what was read from them: the model of an open listing, and that of a session.

import * as path from "node:path";
import * as vscode from "vscode";
import { told } from "../session/commands";

/** Changes that come one after the other, as a file is written in pieces, are told once, after so many ms of quiet. */
const SETTLED = 300;

/** Tells when a file was written, until it is disposed of. */
export function onFileChange(file: string, changed: () => void): vscode.Disposable {
  const folder = vscode.Uri.file(path.dirname(file));
  const pattern = new vscode.RelativePattern(folder, path.basename(file).replace(/[[\]{}*?]/g, "[$&]"));
  const watcher = vscode.workspace.createFileSystemWatcher(pattern, false, false, true);
  let waiting: NodeJS.Timeout | undefined;
  const settle = () => {
    clearTimeout(waiting);
    waiting = setTimeout(changed, SETTLED);
  };
  watcher.onDidChange(settle);
  watcher.onDidCreate(settle);
  return vscode.Disposable.from(watcher, { dispose: () => clearTimeout(waiting) });
}

/** Sessions go on with the model that they have read.  Says so when its file changes, and offers to read it again. */
export class ChangedModels implements vscode.Disposable {
  private readonly watched = new Map<vscode.DebugSession, { file: string; watcher: vscode.Disposable }>();
  private readonly listeners = [
    vscode.debug.onDidStartDebugSession((session) => this.begin(session)),
    vscode.debug.onDidTerminateDebugSession((session) => this.end(session)),
  ];
  private readonly ended = new vscode.EventEmitter<string>();
  /** A model is debugged no more. */
  readonly onDidEnd = this.ended.event;

  /** Whether a session goes by what it has read from this file. */
  isDebugged(file: string): boolean {
    return [...this.watched.values()].some((each) => each.file === file);
  }

  private begin(session: vscode.DebugSession): void {
    const { type, request, program, cwd } = session.configuration;
    if (type === "nncdbg" && request === "launch") {
      const file = path.resolve(cwd ?? session.workspaceFolder?.uri.fsPath ?? "", program);
      const watcher = onFileChange(file, () => void this.offerRestart(session, file));
      this.watched.set(session, { file, watcher });
    }
  }

  private async offerRestart(session: vscode.DebugSession, file: string): Promise<void> {
    const words = `${path.basename(file)} has changed. The session continues with the old version.`;
    if ((await vscode.window.showWarningMessage(words, "Restart")) === "Restart" && this.watched.has(session)) {
      await told(async () => void (await session.customRequest("restart")));
    }
  }

  private end(session: vscode.DebugSession): void {
    const { file, watcher } = this.watched.get(session) ?? {};
    watcher?.dispose();
    if (this.watched.delete(session) && file) {
      this.ended.fire(file);
    }
  }

  dispose(): void {
    [...this.listeners, ...[...this.watched.values()].map((each) => each.watcher), this.ended].forEach((each) => void each.dispose());
  }
}
