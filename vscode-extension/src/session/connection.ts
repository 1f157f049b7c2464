// The connection to a debug server.  VS Code's messages go over it, and beside them requests of our own: by way of
// VS Code these would pass its window twice, which has the screen to draw meanwhile.

import { type SpawnOptionsWithoutStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { type NetConnectOpts, createConnection } from "node:net";
import type { Readable, Writable } from "node:stream";
import * as vscode from "vscode";
import { type Message, StreamMessageReader, StreamMessageWriter } from "vscode-jsonrpc/node";
import type { Answer } from "./connections";

/** Requests of our own are numbered from here; VS Code counts from 1. */
const OURS = 2 ** 30;
/** ms after the end of a server in which its last words are read, though a child of it may hold the stream;
 * and those in which what was read is taken apart, message by message. */
const GRACE = 1000;
const LAST_WORDS = 100;

interface Sent {
  type: string;
  request_seq?: number;
  success?: boolean;
  message?: string;
  event?: string;
  body?: { error?: { id: number; format: string; variables?: Record<string, string>; showUser?: boolean } };
}

/** What the owner of a launched server is told. */
export interface Owner {
  /** How it has ended, if nobody asked it to. */
  surprised(how: string): void;
  /** Why it refuses to launch; true if that is shown, so that VS Code need not. */
  refused(number: number, words: string): boolean;
}

interface Waiting {
  resolve: (body: unknown) => void;
  reject: (error: Error) => void;
}

export class Wire implements vscode.DebugAdapter {
  private readonly sent = new vscode.EventEmitter<vscode.DebugProtocolMessage>();
  readonly onDidSendMessage = this.sent.event;
  private readonly waiting = new Map<number, Waiting>();
  /** Requests of VS Code that have no answer yet: their commands. */
  private readonly open = new Map<number, string>();
  private readonly writer: StreamMessageWriter;
  private last = OURS;
  private closed = false;
  /** The end is no surprise. */
  private expected = false;
  /** VS Code knows that the session ends. */
  private told = false;

  private constructor(
    readable: Readable,
    writable: Writable,
    private readonly close: () => void,
    private readonly owner?: Owner,
  ) {
    this.writer = new StreamMessageWriter(writable);
    const reader = new StreamMessageReader(readable);
    reader.listen((message) => this.hear(message as unknown as Sent));
    // Whoever talks like this is no debug server.
    reader.onError((error) => {
      this.tell("output", { category: "stderr", output: `${error.message}\n` });
      this.close();
    });
  }

  /** A server of its own.  Throws what `spawn` says. */
  static async launch(command: string, args: string[], options: SpawnOptionsWithoutStdio, owner: Owner): Promise<Wire> {
    const server = spawn(command, args, options);
    await once(server, "spawn");
    const wire = new Wire(server.stdout, server.stdin, () => server.kill(), owner);
    server.stderr.on("data", (text: Buffer) => wire.tell("output", { category: "stderr", output: text.toString() }));
    server.once("exit", (code, signal) => {
      const how = signal ? ` by ${signal}` : ` with exit code ${code}`;
      void Promise.race([once(server, "close"), after(GRACE)])
        .then(() => after(LAST_WORDS))
        .then(() => wire.end(how));
    });
    return wire;
  }

  /** The server of a program that listens.  Throws what the socket says. */
  static async connect(place: NetConnectOpts): Promise<Wire> {
    const socket = createConnection(place).setNoDelay(true);
    await once(socket, "connect");
    // The program that was attached to speaks for itself.
    const wire = new Wire(socket, socket, () => socket.destroy());
    socket.on("error", () => socket.destroy()).once("close", () => wire.end(""));
    return wire;
  }

  /** What VS Code sends. */
  handleMessage(message: vscode.DebugProtocolMessage): void {
    const { seq, type, command = "" } = message as { seq: number; type: string; command?: string };
    if (type === "request") {
      this.open.set(seq, command);
    }
    this.expected ||= command === "disconnect" || command === "terminate";
    this.write(message);
  }

  /** A request of our own. */
  ask<Body>(command: string, argument: object): Answer<Body> {
    const seq = this.request(command, argument);
    const body = new Promise<Body>((resolve, reject) => {
      this.waiting.set(seq, { resolve: resolve as (body: unknown) => void, reject });
    });
    if (this.closed) {
      this.refuse();
    }
    return { body, abandon: () => this.waiting.has(seq) && void this.request("cancel", { requestId: seq }) };
  }

  private request(command: string, argument: object): number {
    const seq = ++this.last;
    this.write({ seq, type: "request", command, arguments: argument });
    return seq;
  }

  private write(message: object): void {
    // Where nothing can be written any more, the end of the stream says so too.
    this.writer.write(message as Message).catch(() => undefined);
  }

  private hear(message: Sent): void {
    const { type, event, request_seq: number = 0 } = message;
    if (type !== "response" || number <= OURS) {
      this.showElsewhere(message, this.open.get(number));
      this.open.delete(number);
      // A program that ends says `exited` first.  Without that, somebody speaks for a server that has crashed.
      this.expected ||= event === "exited";
      if (event === "terminated") {
        this.told = true;
        this.surprise("");
      }
      this.sent.fire(message);
      return;
    }
    const waiting = this.waiting.get(number);
    this.waiting.delete(number);
    if (message.success) {
      waiting?.resolve(message.body);
    } else {
      waiting?.reject(new Error(wordsOf(message)));
    }
  }

  private showElsewhere(message: Sent, command: string | undefined): void {
    const error = message.body?.error;
    if (command === "launch" && message.success === false && error && this.owner?.refused(error.id, wordsOf(message))) {
      error.showUser = false;
    }
  }

  private tell(event: string, body?: object): void {
    this.sent.fire({ seq: 0, type: "event", event, body });
  }

  /** The server is gone; VS Code is told if nobody has done so. */
  private end(how: string): void {
    this.closed = true;
    this.refuse();
    this.surprise(how);
    const message = "the debug server has ended";
    // VS Code would wait for them.
    this.open.forEach((command, seq) => this.sent.fire({ seq: 0, type: "response", request_seq: seq, command, success: false, message }));
    this.open.clear();
    if (!this.told) {
      this.told = true;
      this.tell("terminated");
    }
  }

  private surprise(how: string): void {
    if (!this.expected) {
      this.expected = true;
      this.owner?.surprised(how);
    }
  }

  private refuse(): void {
    this.waiting.forEach(({ reject }) => reject(new Error("the session has ended")));
    this.waiting.clear();
  }

  dispose(): void {
    this.closed = this.told = this.expected = true;
    this.refuse();
    this.close();
    this.sent.dispose();
  }
}

const after = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function wordsOf({ body, message = "the request failed" }: Sent): string {
  const { format, variables } = body?.error ?? {};
  return format?.replace(/\{(\w+)\}/g, (whole, name: string) => variables?.[name] ?? whole) ?? message;
}
