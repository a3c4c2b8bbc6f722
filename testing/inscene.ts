/** A scene that is started once for a file of tests, and begun and ended for each of them. */
import { afterAll, afterEach, beforeAll, beforeEach } from "vitest";

interface SceneOfTests {
  /** Before each test. */
  begin(): Promise<void>;
  /** After each test. */
  end(): Promise<void>;
  stop(): Promise<void>;
}

/** `use` is told of it before the first test. */
export function inScene<S extends SceneOfTests>(start: () => Promise<S>, use: (scene: S) => void): void {
  let scene: S | undefined;
  beforeAll(async () => {
    scene = await start();
    use(scene);
  });
  afterAll(() => scene?.stop());
  beforeEach(() => scene?.begin());
  afterEach(() => scene?.end());
}
