// The launch configuration of a model in launch.json, and its keys as options of `nncdbg watch`.

import * as path from "node:path";

export interface LaunchConfiguration {
  type: string;
  request: string;
  name: string;
  program: string;
  inputs?: Record<string, unknown>;
  dims?: Record<string, number>;
  cwd?: string;
  [key: string]: unknown;
}

/** The first launch configuration of a model, with `${workspaceFolder}` replaced. */
export function configurationFor(model: string, folder: string, configurations: readonly LaunchConfiguration[]): LaunchConfiguration | undefined {
  const launches = configurations.filter((each) => each.type === "nncdbg" && each.request === "launch" && each.program);
  return launches
    .map((each) => substituted(each, folder) as LaunchConfiguration)
    .find((each) => path.resolve(each.cwd ?? folder, each.program) === model);
}

function substituted(value: unknown, folder: string): unknown {
  if (typeof value === "string") {
    return value.replaceAll("${workspaceFolder}", folder);
  }
  if (Array.isArray(value)) {
    return value.map((each) => substituted(each, folder));
  }
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, substituted(each, folder)]));
  }
  return value;
}

const OPTIONS = { seed: "--seed", backend: "--backend", allocator: "--allocator", history: "--history", maxOps: "--max-ops", steps: "--steps" };
const SWITCHES = { fallback: "--fallback", flat: "--flat" };
const LISTS = { allowStores: "--allow-store", opLibrary: "--op-library" };

/** The options of `nncdbg watch` for the keys of a launch configuration. */
export function optionsOf(launch: LaunchConfiguration): string[] {
  const textOf = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value));
  return [
    ...Object.entries(launch.inputs ?? {}).flatMap(([name, value]) => ["--input", `${name}=${textOf(value)}`]),
    ...Object.entries(launch.dims ?? {}).flatMap(([name, size]) => ["--dim", `${name}=${size}`]),
    ...Object.entries(OPTIONS).flatMap(([key, option]) => (launch[key] === undefined ? [] : [`${option}=${launch[key] as string | number}`])),
    ...Object.entries(SWITCHES).flatMap(([key, option]) => (launch[key] ? [option] : [])),
    ...Object.entries(LISTS).flatMap(([key, option]) => ((launch[key] as string[]) ?? []).map((each) => `${option}=${each}`)),
  ];
}
