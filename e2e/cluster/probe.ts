/** Asks a server whether it is there. */
import { request } from "node:https";

/** Whether a GET is answered 200. Any failure to answer is a no. */
export function answersOk(url: string, caPem: string): Promise<boolean> {
  return new Promise((resolve) => {
    const asked = request(url, { ca: caPem, timeout: 10_000, agent: false }, (response) => {
      response.resume();
      resolve(response.statusCode === 200);
    });
    asked.once("timeout", () => asked.destroy());
    asked.once("error", () => resolve(false));
    asked.end();
  });
}
