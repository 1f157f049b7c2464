// What the form "Run with" hears and says, and how a field of it is one of the texts that a launch takes.

/** What `nncdbg print --json` says of a model. */
export interface Signature {
  inputs: { name: string; type: string | null }[];
  dims: string[];
}

export interface Model extends Signature {
  title: string;
  backends: string[];
}

/** What the user has entered; what is empty is chosen by nncdbg. */
export interface Choices {
  inputs: Record<string, string>;
  dims: Record<string, string>;
  backend: string;
  seed: string;
}

export type ToForm = { kind: "show"; model: Model; choices: Choices; words: string } | { kind: "file"; input: string; file: string };

export type FromForm = { kind: "ready" } | { kind: "choose"; input: string } | { kind: "start"; choices: Choices };

export const GENERATED = ["zeros", "ones", "normal", "uniform", "arange"] as const;

/** An input of the form: how its data comes, and what the text beside it has. */
export interface Field {
  kind: "" | "file" | "value" | (typeof GENERATED)[number];
  detail: string;
}

const GENERATOR = new RegExp(`^(${GENERATED.join("|")})\\s*(?:\\[([^\\]]*)\\])?$`);
/** The suffixes of images, as `image_specs.py` of nncdbg has them; steps such as `:/255` may follow. */
export const IMAGES = ["png", "jpg", "jpeg", "bmp", "gif", "tif", "tiff", "webp"];
const FILE = new RegExp(`\\.np[yz]$|\\.npz:|\\.(?:${IMAGES.join("|")})(?::.*)?$`, "i");

export function fieldOf(text: string): Field {
  const generated = GENERATOR.exec(text.trim());
  if (generated) {
    return { kind: generated[1] as Field["kind"], detail: generated[2] ?? "" };
  }
  return { kind: text.trim() ? (FILE.test(text) ? "file" : "value") : "", detail: text.trim() };
}

export function textOf({ kind, detail }: Field): string {
  const said = detail.trim();
  if (kind === "file" || kind === "value") {
    return said;
  }
  return kind && said ? `${kind}[${said}]` : kind;
}

/** The keys of a launch configuration.  Throws for a size or a seed that is no integer. */
export function launchKeys({ inputs, dims, backend, seed }: Choices): object {
  const said = (record: Record<string, string>) => Object.entries(record).filter(([, text]) => text.trim());
  return {
    inputs: Object.fromEntries(said(inputs)),
    dims: Object.fromEntries(said(dims).map(([name, text]) => [name, integer(`size ${name}`, text)])),
    backend: backend || undefined,
    seed: seed.trim() ? integer("seed", seed) : undefined,
  };
}

function integer(what: string, text: string): number {
  if (!/^\d+$/.test(text.trim())) {
    throw new Error(`the ${what} must be a non-negative integer, not "${text}"`);
  }
  return Number(text);
}

/** The keys of a launch configuration that are in the form. */
interface Launch {
  [key: string]: unknown;
  inputs?: object;
  dims?: object;
  backend?: string;
  seed?: number;
}

/** The other way: what a configuration has, as texts. */
export function choicesOf({ inputs, dims, backend = "", seed }: Launch): Choices {
  const texts = (record: object = {}) =>
    Object.fromEntries(
      Object.entries(record)
        .filter(([, value]) => value !== null)
        .map(([name, value]) => [name.replace(/^%/, ""), typeof value === "string" ? value : JSON.stringify(value)]),
    );
  return { inputs: texts(inputs), dims: texts(dims), backend, seed: seed === undefined ? "" : String(seed) };
}
