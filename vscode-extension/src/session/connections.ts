// The sessions that are under way, and what is asked of their servers beside what VS Code asks.

import * as vscode from "vscode";
import type { Wire } from "./connection";

/** What comes of a request; `abandon` has the server give it up. */
export interface Answer<Body> {
  body: Promise<Body>;
  abandon: () => void;
}

/** What was asked beside VS Code, and what came; for those who want to look on. */
export interface Exchange {
  session: vscode.DebugSession;
  command: string;
  arguments: object;
  body: Promise<unknown>;
}

export class Wires implements vscode.Disposable {
  private readonly wires = new Map<string, Wire>();
  private readonly asked = new vscode.EventEmitter<Exchange>();
  readonly onDidAsk = this.asked.event;
  private readonly listener = vscode.debug.onDidTerminateDebugSession(({ id }) => this.wires.delete(id));

  /** The connection of a session, by which it is asked from now on. */
  async use(session: vscode.DebugSession, wire: Promise<Wire>): Promise<vscode.DebugAdapterDescriptor> {
    const made = await wire;
    this.wires.set(session.id, made);
    return new vscode.DebugAdapterInlineImplementation(made);
  }

  ask<Body>(session: vscode.DebugSession, command: string, argument: object): Answer<Body> {
    const wire = this.wires.get(session.id);
    // A session that a `debugServer` was given for has a connection that only VS Code has.
    const answer = wire?.ask<Body>(command, argument) ?? {
      body: Promise.resolve(session.customRequest(command, argument) as Thenable<Body>),
      abandon: () => undefined,
    };
    this.asked.fire({ session, command, arguments: argument, body: answer.body });
    return answer;
  }

  dispose(): void {
    this.listener.dispose();
    this.asked.dispose();
  }
}
