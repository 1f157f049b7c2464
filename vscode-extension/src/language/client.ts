// The client of a running `nncdbg lsp`.  It uses vscode-jsonrpc without vscode-languageclient, which is larger than
// the rest of the extension and mostly serves features that this server lacks.

import { spawn, type ChildProcessWithoutNullStreams } from "node:child_process";
import * as vscode from "vscode";
import { createMessageConnection, type MessageConnection } from "vscode-jsonrpc/node";
import type { Diagnostic } from "vscode-languageserver-types";
import { CAPABILITIES } from "./capabilities";
import { editorDiagnostic } from "./conversion";
import { synchronize } from "./documents";
import { provide, type ServerCapabilities } from "./providers";
import { dimsUnreadViews, onDimUnreadViewsChange } from "./unreadViews";

export const SELECTOR: vscode.DocumentSelector = [{ language: "nnc", scheme: "file" }, { language: "nnc", scheme: "untitled" }];
/** ms in which the server may exit. */
const EXIT_TIMEOUT = 2000;

export interface ServerCommand {
  python: string;
  arguments: string[];
  cwd: string | undefined;
  env: NodeJS.ProcessEnv;
}

export class Client {
  private readonly process: ChildProcessWithoutNullStreams;
  private readonly connection: MessageConnection;
  private readonly diagnostics = vscode.languages.createDiagnosticCollection("nncdbg");
  /** The diagnostics of the open documents. */
  private readonly sent = new Map<string, Diagnostic[]>();
  private readonly listeners: vscode.Disposable[] = [this.diagnostics];
  private readonly exited: Promise<number | null>;
  private stopping = false;

  private constructor(
    command: ServerCommand,
    private readonly output: vscode.OutputChannel,
  ) {
    const { cwd, env } = command;
    this.process = spawn(command.python, command.arguments, { cwd, env });
    this.process.stderr.on("data", (text: Buffer) => output.append(text.toString()));
    this.exited = new Promise((resolve, reject) => this.process.once("exit", resolve).once("error", reject));
    this.connection = createMessageConnection(this.process.stdout, this.process.stdin);
    // After an error of the connection the process exits, which is reported.
    this.connection.onError(([error]) => output.appendLine(error.message));
  }

  /** Starts a server.  `ended` is called if it exits unexpectedly. */
  static async start(command: ServerCommand, output: vscode.OutputChannel, ended: () => void): Promise<Client> {
    const client = new Client(command, output);
    try {
      await Promise.race([client.initialize(), client.exited.then(throwExited)]);
    } catch (error) {
      await client.stop();
      throw error;
    }
    const reportExit = (): void => {
      if (!client.stopping) {
        client.release();
        ended();
      }
    };
    client.exited.then(reportExit, reportExit);
    return client;
  }

  private async initialize(): Promise<void> {
    const { connection } = this;
    connection.onNotification("textDocument/publishDiagnostics", (sent: { uri: string; diagnostics: Diagnostic[] }) => {
      this.sent.set(sent.uri, sent.diagnostics);
      this.showDiagnostics(sent.uri);
    });
    for (const method of ["window/logMessage", "window/showMessage"]) {
      connection.onNotification(method, (sent: { message: string }) => this.output.appendLine(sent.message));
    }
    connection.listen();
    const folders = vscode.workspace.workspaceFolders?.map(folderOf) ?? null;
    const { capabilities } = await connection.sendRequest<{ capabilities: ServerCapabilities }>("initialize", {
      processId: process.pid,
      rootUri: folders?.[0]?.uri ?? null,
      workspaceFolders: folders,
      capabilities: CAPABILITIES,
    });
    this.notify("initialized", {});
    this.listeners.push(
      ...synchronize(SELECTOR, this.notify.bind(this)),
      ...provide(SELECTOR, capabilities, this.request.bind(this)),
      onDimUnreadViewsChange(() => [...this.sent.keys()].forEach((uri) => this.showDiagnostics(uri))),
      vscode.workspace.onDidChangeWorkspaceFolders(({ added, removed }) => {
        const event = { added: added.map(folderOf), removed: removed.map(folderOf) };
        this.notify("workspace/didChangeWorkspaceFolders", { event });
      }),
    );
  }

  private showDiagnostics(name: string): void {
    const uri = vscode.Uri.parse(name);
    const shown = this.sent.get(name)?.filter(({ code }) => code !== "unread-view" || dimsUnreadViews(uri));
    this.diagnostics.set(uri, shown?.map(editorDiagnostic));
  }

  private notify(method: string, params: object): void {
    this.connection.sendNotification(method, params).catch((error: Error) => this.output.appendLine(error.message));
  }

  private async request<Result, Converted>(
    method: string,
    params: object,
    token: vscode.CancellationToken,
    convert: (result: Result) => Converted,
  ): Promise<Converted | undefined> {
    try {
      const result = await this.connection.sendRequest<Result | null | undefined>(method, params, token);
      return result == null ? undefined : convert(result);
    } catch (error) {
      if (token.isCancellationRequested || this.stopping) {
        return undefined;
      }
      throw error;
    }
  }

  /** Requests the server's shutdown, and ends its process if it does not exit in time. */
  async stop(): Promise<void> {
    this.stopping = true;
    this.release();
    if (this.process.exitCode === null && this.process.pid !== undefined) {
      const late = new Promise((resolve) => setTimeout(resolve, EXIT_TIMEOUT));
      const shutdown = this.connection.sendRequest("shutdown").then(() => this.connection.sendNotification("exit"));
      await Promise.race([shutdown.then(() => this.exited), this.exited, late]).catch(() => undefined);
    }
    this.connection.dispose();
    this.process.kill();
  }

  private release(): void {
    this.listeners.splice(0).forEach((each) => void each.dispose());
  }
}

function throwExited(code: number | null): never {
  throw new Error(`the server exited with ${code === null ? "a signal" : `code ${code}`}; its output channel shows the last output`);
}

function folderOf(folder: vscode.WorkspaceFolder): { uri: string; name: string } {
  return { uri: folder.uri.toString(), name: folder.name };
}
