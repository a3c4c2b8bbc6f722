/** One line of JSON per event on stderr: constant message, the facts as fields. */

import type { Wall } from "./clock.ts";

export type Fields = Record<string, unknown>;

export interface Logger {
  info(message: string, fields?: Fields): void;
  warn(message: string, fields?: Fields): void;
  error(message: string, fields?: Fields): void;
  /** A logger that adds `fields` to each line. */
  with(fields: Fields): Logger;
}

export function jsonLogger(write: (line: string) => void, wall: () => Wall, base: Fields = {}): Logger {
  const emit = (level: string, message: string, fields: Fields = {}): void => {
    write(
      `${JSON.stringify({ time: wall().toISOString(), level, message, ...base, ...fields }, replaceUnprintable)}\n`,
    );
  };
  return {
    info: (message, fields) => emit("info", message, fields),
    warn: (message, fields) => emit("warn", message, fields),
    error: (message, fields) => emit("error", message, fields),
    with: (fields) => jsonLogger(write, wall, { ...base, ...fields }),
  };
}

export const silentLogger: Logger = { info: () => {}, warn: () => {}, error: () => {}, with: () => silentLogger };

function replaceUnprintable(_key: string, value: unknown): unknown {
  if (typeof value === "bigint") return value.toString();
  if (value instanceof Error) return { name: value.name, message: value.message, cause: value.cause };
  return value;
}
