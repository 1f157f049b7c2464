// The connection to a debug server.  It transfers VS Code's messages, and requests of the extension.  Requests sent
// through VS Code would pass its window twice, which draws the screen in the meantime.

import { type SpawnOptionsWithoutStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { type NetConnectOpts, createConnection } from "node:net";
import type { Readable, Writable } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import * as vscode from "vscode";
import { type Message, StreamMessageReader, StreamMessageWriter } from "vscode-jsonrpc/node";
import type { PendingRequest } from "./connections";
import { untilRead } from "./writtenTexts";

/** The extension's requests have higher numbers; VS Code counts from 1. */
const FIRST_REQUEST = 2 ** 30;
/** ms after the exit of a server in which its streams may close; a child process may keep them open. */
const CLOSING = 1000;
/** ms after that in which the last messages are decoded. */
const DECODING = 100;

interface ServerMessage {
  type: string;
  request_seq?: number;
  success?: boolean;
  message?: string;
  event?: string;
  body?: {
    error?: { id: number; format: string; variables?: Record<string, string>; showUser?: boolean };
    source?: { path?: string };
  };
}

export interface LaunchListener {
  /** The server exited without a request; `how` is for example ` with exit code 1`. */
  exited(how: string): void;
  /** The server rejected the launch.  Returns whether the listener shows the error, so that VS Code does not. */
  rejected(id: number, message: string): boolean;
}

export class Connection implements vscode.DebugAdapter {
  private readonly received = new vscode.EventEmitter<vscode.DebugProtocolMessage>();
  readonly onDidSendMessage = this.received.event;
  private readonly waiting = new Map<number, { resolve: (body: unknown) => void; reject: (error: Error) => void }>();
  /** The commands of VS Code's requests that have no response yet. */
  private readonly unanswered = new Map<number, string>();
  private readonly writer: StreamMessageWriter;
  /** Texts that the server has announced since the last stop. */
  private readonly texts = new Set<string>();
  /** A stop that waits for its texts, and the later messages. */
  private held: ServerMessage[] | undefined;
  private lastRequest = FIRST_REQUEST;
  private closed = false;
  private exitExpected = false;
  /** VS Code has received `terminated`. */
  private terminated = false;

  private constructor(
    readable: Readable,
    writable: Writable,
    private readonly close: () => void,
    private readonly listener?: LaunchListener,
  ) {
    this.writer = new StreamMessageWriter(writable);
    const reader = new StreamMessageReader(readable);
    reader.listen((message) => this.receive(message as unknown as ServerMessage));
    // The stream is not one of a debug server.
    reader.onError((error) => {
      this.sendEvent("output", { category: "stderr", output: `${error.message}\n` });
      this.close();
    });
  }

  /** Starts a server.  Throws the errors of `spawn`. */
  static async launch(command: string, args: string[], options: SpawnOptionsWithoutStdio, listener: LaunchListener): Promise<Connection> {
    const server = spawn(command, args, options);
    await once(server, "spawn");
    const connection = new Connection(server.stdout, server.stdin, () => server.kill(), listener);
    server.stderr.on("data", (text: Buffer) => connection.sendEvent("output", { category: "stderr", output: text.toString() }));
    server.once("exit", (code, signal) => {
      const how = signal ? ` by ${signal}` : ` with exit code ${code}`;
      void Promise.race([once(server, "close"), delay(CLOSING)])
        .then(() => delay(DECODING))
        .then(() => connection.end(how));
    });
    return connection;
  }

  /** Connects to a listening program.  Throws the errors of the socket. */
  static async connect(address: NetConnectOpts): Promise<Connection> {
    const socket = createConnection(address).setNoDelay(true);
    await once(socket, "connect");
    const connection = new Connection(socket, socket, () => socket.destroy());
    socket.on("error", () => socket.destroy()).once("close", () => connection.end(""));
    return connection;
  }

  /** Sends a message of VS Code. */
  handleMessage(message: vscode.DebugProtocolMessage): void {
    const { seq, type, command = "" } = message as { seq: number; type: string; command?: string };
    if (type === "request") {
      this.unanswered.set(seq, command);
    }
    this.exitExpected ||= command === "disconnect" || command === "terminate";
    this.write(message);
  }

  /** Sends a request of the extension. */
  request<Body>(command: string, argument: object): PendingRequest<Body> {
    const seq = this.writeRequest(command, argument);
    const body = new Promise<Body>((resolve, reject) => {
      this.waiting.set(seq, { resolve: resolve as (body: unknown) => void, reject });
    });
    if (this.closed) {
      this.rejectWaiting();
    }
    return { body, cancel: () => this.waiting.has(seq) && void this.writeRequest("cancel", { requestId: seq }) };
  }

  private writeRequest(command: string, argument: object): number {
    const seq = ++this.lastRequest;
    this.write({ seq, type: "request", command, arguments: argument });
    return seq;
  }

  private write(message: object): void {
    // The end of the stream reports a closed connection too.
    this.writer.write(message as Message).catch(() => undefined);
  }

  /** Delivers the messages in order: a stop once the editor has read the texts that it shows. */
  private receive(message: ServerMessage): void {
    const { event, body } = message;
    if (this.held) {
      this.held.push(message);
    } else if (event === "stopped" && this.texts.size) {
      this.held = [message];
      void untilRead(this.texts).then(() => this.release());
      this.texts.clear();
    } else {
      if (event === "loadedSource" && body?.source?.path?.endsWith(".nnc")) {
        this.texts.add(body.source.path);
      }
      this.deliver(message);
    }
  }

  private release(): void {
    const held = this.held ?? [];
    this.held = undefined;
    held.forEach((each) => this.receive(each));
  }

  private deliver(message: ServerMessage): void {
    const { type, event, request_seq: request = 0 } = message;
    if (type !== "response" || request <= FIRST_REQUEST) {
      this.hideShownError(message, this.unanswered.get(request));
      this.unanswered.delete(request);
      // A program that ends sends `exited` before `terminated`; a supervisor of a crashed server sends only `terminated`.
      this.exitExpected ||= event === "exited";
      if (event === "terminated") {
        this.terminated = true;
        this.reportExit("");
      }
      this.received.fire(message);
      return;
    }
    const waiting = this.waiting.get(request);
    this.waiting.delete(request);
    if (message.success) {
      waiting?.resolve(message.body);
    } else {
      waiting?.reject(new Error(errorText(message)));
    }
  }

  private hideShownError(message: ServerMessage, command: string | undefined): void {
    const error = message.body?.error;
    if (command === "launch" && message.success === false && error && this.listener?.rejected(error.id, errorText(message))) {
      error.showUser = false;
    }
  }

  private sendEvent(event: string, body?: object): void {
    this.received.fire({ seq: 0, type: "event", event, body });
  }

  /** The server has exited: ends the session in VS Code, which waits for open requests. */
  private end(how: string): void {
    this.release();
    this.closed = true;
    this.rejectWaiting();
    this.reportExit(how);
    const message = "the debug server has ended";
    this.unanswered.forEach((command, seq) => this.received.fire({ seq: 0, type: "response", request_seq: seq, command, success: false, message }));
    this.unanswered.clear();
    if (!this.terminated) {
      this.terminated = true;
      this.sendEvent("terminated");
    }
  }

  private reportExit(how: string): void {
    if (!this.exitExpected) {
      this.exitExpected = true;
      this.listener?.exited(how);
    }
  }

  private rejectWaiting(): void {
    this.waiting.forEach(({ reject }) => reject(new Error("the session has ended")));
    this.waiting.clear();
  }

  dispose(): void {
    this.closed = this.terminated = this.exitExpected = true;
    this.rejectWaiting();
    this.close();
    this.received.dispose();
  }
}

/** The message of an error response, with its variables. */
function errorText({ body, message = "the request failed" }: ServerMessage): string {
  const { format, variables } = body?.error ?? {};
  return format?.replace(/\{(\w+)\}/g, (whole, name: string) => variables?.[name] ?? whole) ?? message;
}
