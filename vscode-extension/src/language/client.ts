// A running `nncdbg lsp` and the editor's side of it.  It talks by vscode-jsonrpc alone: the whole of
// vscode-languageclient, most of it for what this one server does not do, is larger than all the rest.

import { spawn, type ChildProcessWithoutNullStreams } from "node:child_process";
import * as vscode from "vscode";
import { createMessageConnection, type MessageConnection } from "vscode-jsonrpc/node";
import type { Diagnostic } from "vscode-languageserver-types";
import { CAPABILITIES } from "./capabilities";
import { editorDiagnostic } from "./conversion";
import { synchronize } from "./documents";
import { provide, type Offered } from "./providers";

export const SELECTOR: vscode.DocumentSelector = [
  { language: "nnc", scheme: "file" },
  { language: "nnc", scheme: "untitled" },
];
const PATIENCE = 2000;

export interface Command {
  python: string;
  arguments: string[];
  cwd: string | undefined;
  env: NodeJS.ProcessEnv;
}

export class Client {
  private readonly process: ChildProcessWithoutNullStreams;
  private readonly connection: MessageConnection;
  private readonly diagnostics = vscode.languages.createDiagnosticCollection("nncdbg");
  private readonly listeners: vscode.Disposable[] = [this.diagnostics];
  private readonly exited: Promise<number | null>;
  private stopping = false;

  private constructor(
    command: Command,
    private readonly output: vscode.OutputChannel,
  ) {
    const { cwd, env } = command;
    this.process = spawn(command.python, command.arguments, { cwd, env });
    this.process.stderr.on("data", (text: Buffer) => output.append(text.toString()));
    this.exited = new Promise((resolve, reject) => this.process.once("exit", resolve).once("error", reject));
    this.connection = createMessageConnection(this.process.stdout, this.process.stdin);
    // What breaks a connection ends the process too, which is told.
    this.connection.onError(([error]) => output.appendLine(error.message));
  }

  /** A server that is ready; `ended` is called when it ends without being stopped. */
  static async start(command: Command, output: vscode.OutputChannel, ended: () => void): Promise<Client> {
    const client = new Client(command, output);
    try {
      await Promise.race([client.initialize(), client.exited.then(refuse)]);
    } catch (error) {
      await client.stop();
      throw error;
    }
    const gone = (): void => {
      if (!client.stopping) {
        client.release();
        ended();
      }
    };
    client.exited.then(gone, gone);
    return client;
  }

  private async initialize(): Promise<void> {
    const { connection } = this;
    connection.onNotification("textDocument/publishDiagnostics", (sent: { uri: string; diagnostics: Diagnostic[] }) =>
      this.diagnostics.set(vscode.Uri.parse(sent.uri), sent.diagnostics.map(editorDiagnostic)),
    );
    for (const method of ["window/logMessage", "window/showMessage"]) {
      connection.onNotification(method, (sent: { message: string }) => this.output.appendLine(sent.message));
    }
    connection.listen();
    const folders = vscode.workspace.workspaceFolders?.map(folderOf) ?? null;
    const { capabilities } = await connection.sendRequest<{ capabilities: Offered }>("initialize", {
      processId: process.pid,
      rootUri: folders?.[0]?.uri ?? null,
      workspaceFolders: folders,
      capabilities: CAPABILITIES,
    });
    this.notify("initialized", {});
    this.listeners.push(
      ...synchronize(SELECTOR, this.notify.bind(this)),
      ...provide(SELECTOR, capabilities, this.ask.bind(this)),
      vscode.workspace.onDidChangeWorkspaceFolders(({ added, removed }) => {
        const event = { added: added.map(folderOf), removed: removed.map(folderOf) };
        this.notify("workspace/didChangeWorkspaceFolders", { event });
      }),
    );
  }

  private notify(method: string, params: object): void {
    this.connection.sendNotification(method, params).catch((error: Error) => this.output.appendLine(error.message));
  }

  /** The answer to a request; nothing where it is not wanted any more. */
  private async ask<Answer>(
    method: string,
    params: object,
    token: vscode.CancellationToken,
  ): Promise<Answer | undefined> {
    try {
      return (await this.connection.sendRequest<Answer | null>(method, params, token)) ?? undefined;
    } catch (error) {
      if (token.isCancellationRequested || this.stopping) {
        return undefined;
      }
      throw error;
    }
  }

  /** Ends the server: it is asked to, and not waited for long. */
  async stop(): Promise<void> {
    this.stopping = true;
    this.release();
    if (this.process.exitCode === null && this.process.pid !== undefined) {
      const late = new Promise((resolve) => setTimeout(resolve, PATIENCE));
      const asked = this.connection.sendRequest("shutdown").then(() => this.connection.sendNotification("exit"));
      await Promise.race([asked.then(() => this.exited), this.exited, late]).catch(() => undefined);
    }
    this.connection.dispose();
    this.process.kill();
  }

  private release(): void {
    this.listeners.splice(0).forEach((each) => void each.dispose());
  }
}

function refuse(code: number | null): never {
  throw new Error(`the server exited with ${code === null ? "a signal" : `code ${code}`}; its output channel shows the last output`);
}

function folderOf(folder: vscode.WorkspaceFolder): { uri: string; name: string } {
  return { uri: folder.uri.toString(), name: folder.name };
}
