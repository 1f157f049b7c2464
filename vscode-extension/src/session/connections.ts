// The connections of the sessions, and requests that the extension itself sends.

import * as vscode from "vscode";
import type { Connection } from "./connection";

/** A request that was sent; `cancel` cancels it on the server. */
export interface PendingRequest<Body> {
  body: Promise<Body>;
  cancel: () => void;
}

/** A request of the extension itself, for other extensions that observe it. */
export interface ObservedRequest {
  session: vscode.DebugSession;
  command: string;
  arguments: object;
  body: Promise<unknown>;
}

export class Connections implements vscode.Disposable {
  private readonly connections = new Map<string, Connection>();
  private readonly requests = new vscode.EventEmitter<ObservedRequest>();
  readonly onDidSendRequest = this.requests.event;
  private readonly listener = vscode.debug.onDidTerminateDebugSession(({ id }) => this.connections.delete(id));

  /** Has VS Code use a connection, which also transfers the extension's own requests in this session. */
  async use(session: vscode.DebugSession, opening: Promise<Connection>): Promise<vscode.DebugAdapterDescriptor> {
    const connection = await opening;
    this.connections.set(session.id, connection);
    return new vscode.DebugAdapterInlineImplementation(connection);
  }

  request<Body>(session: vscode.DebugSession, command: string, argument: object): PendingRequest<Body> {
    // With `debugServer` in the configuration, only VS Code has a connection.
    const pending = this.connections.get(session.id)?.request<Body>(command, argument) ?? {
      body: Promise.resolve(session.customRequest(command, argument) as Thenable<Body>),
      cancel: () => undefined,
    };
    this.requests.fire({ session, command, arguments: argument, body: pending.body });
    return pending;
  }

  dispose(): void {
    this.listener.dispose();
    this.requests.dispose();
  }
}
