// The fields of the form "Run with" as keys of a launch configuration, and the messages of its page.

/** The output of `nncdbg print --json`. */
export interface Signature {
  inputs: { name: string; type: string | null }[];
  dims: string[];
}

export interface Model extends Signature {
  title: string;
  backends: string[];
  allocators: string[];
}

/** The entered texts; nncdbg chooses the value of an empty one. */
export interface Choices {
  inputs: Record<string, string>;
  dims: Record<string, string>;
  backend: string;
  /** Missing in choices of earlier versions. */
  allocator?: string;
  seed: string;
}

export type ToForm = { kind: "show"; model: Model; choices: Choices; error: string } | { kind: "file"; input: string; file: string };

export type FromForm = { kind: "ready" } | { kind: "chooseFile"; input: string } | { kind: "start" | "save"; choices: Choices };

export const GENERATED = ["zeros", "ones", "normal", "uniform", "arange"] as const;

/** An input: the source of its data, and the text beside it. */
export interface Field {
  kind: "" | "file" | "value" | (typeof GENERATED)[number];
  detail: string;
}

const GENERATOR = new RegExp(`^(${GENERATED.join("|")})\\s*(?:\\[([^\\]]*)\\])?$`);
/** The image suffixes of `image_specs.py`; steps such as `:/255` may follow. */
export const IMAGES = ["png", "jpg", "jpeg", "bmp", "gif", "tif", "tiff", "webp"];
const FILE = new RegExp(`\\.np[yz]$|\\.npz:|\\.(?:${IMAGES.join("|")})(?::.*)?$`, "i");

export function fieldOf(text: string): Field {
  const generated = GENERATOR.exec(text.trim());
  if (generated) {
    return { kind: generated[1] as Field["kind"], detail: generated[2] ?? "" };
  }
  return { kind: text.trim() ? (FILE.test(text) ? "file" : "value") : "", detail: text.trim() };
}

export function inputText({ kind, detail }: Field): string {
  const text = detail.trim();
  if (kind === "file" || kind === "value") {
    return text;
  }
  return kind && text ? `${kind}[${text}]` : kind;
}

/** The keys of a launch configuration.  Throws if a size or the seed is not an integer. */
export function launchKeys({ inputs, dims, backend, allocator, seed }: Choices): object {
  const entered = (record: Record<string, string>) => Object.entries(record).filter(([, text]) => text.trim());
  return {
    inputs: Object.fromEntries(entered(inputs)),
    dims: Object.fromEntries(entered(dims).map(([name, text]) => [name, integer(`size ${name}`, text)])),
    backend: backend || undefined,
    allocator: allocator || undefined,
    seed: seed.trim() ? integer("seed", seed) : undefined,
  };
}

function integer(what: string, text: string): number {
  if (!/^\d+$/.test(text.trim())) {
    throw new Error(`the ${what} must be a non-negative integer, not "${text}"`);
  }
  return Number(text);
}

/** The keys of a launch configuration that the form shows. */
interface LaunchKeys {
  [key: string]: unknown;
  inputs?: object;
  dims?: object;
  backend?: string;
  allocator?: string;
  seed?: number;
}

/** The texts for a launch configuration. */
export function choicesOf({ inputs, dims, backend = "", allocator = "", seed }: LaunchKeys): Choices {
  const texts = (record: object = {}) =>
    Object.fromEntries(
      Object.entries(record)
        .filter(([, value]) => value !== null)
        .map(([name, value]) => [name.replace(/^%/, ""), typeof value === "string" ? value : JSON.stringify(value)]),
    );
  return { inputs: texts(inputs), dims: texts(dims), backend, allocator, seed: seed === undefined ? "" : String(seed) };
}
