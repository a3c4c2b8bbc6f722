/**
 * An application that never gives up: it writes a row every few milliseconds and connects again whatever happens, so that a
 * successor's first row says when it could write, and a predecessor's rows say how long it still could. It speaks just enough
 * of PostgreSQL's protocol to need no library. Between two rows it does what the table `told` says: to exit with a code.
 */
import { connect } from "node:net";

const { JOB = "", POD_UID = "", PGHOST, PGPORT, PGUSER, PGDATABASE, ON_SIGTERM = "exit" } = process.env;
const EVERY_MS = 20;
const RECONNECT_MS = 100;

const query = `INSERT INTO written (job, uid) VALUES ('${JOB}', '${POD_UID}')
  RETURNING (SELECT exit_code FROM told WHERE uid = '${POD_UID}')`;

/** Its time after SIGTERM is over: the next row that it sends is its last, so that it has written until its end, if it is let. */
let ending = false;
let last = false;

let said = "";
function say(text) {
  if (text !== said) console.log(`${new Date().toISOString()} ${text}`);
  said = text;
}

process.on("SIGTERM", () => {
  say(`SIGTERM: ${ON_SIGTERM}`);
  if (ON_SIGTERM === "exit") process.exit(1);
  // "ignore", or for so many milliseconds.
  if (ON_SIGTERM !== "ignore") setTimeout(() => (ending = true), Number(ON_SIGTERM));
});

const message = (type, body) => {
  const text = Buffer.from(body);
  const head = Buffer.alloc(type.length + 4);
  head.write(type, "latin1");
  head.writeUInt32BE(text.length + 4, type.length);
  return Buffer.concat([head, text]);
};

function session() {
  const socket = connect(Number(PGPORT), PGHOST);
  let received = Buffer.alloc(0);
  socket.setNoDelay();
  socket.on("connect", () => socket.write(message("", `\0\x03\0\0user\0${PGUSER}\0database\0${PGDATABASE}\0\0`)));
  socket.on("data", (chunk) => {
    received = Buffer.concat([received, chunk]);
    while (received.length >= 5 && received.length > received.readUInt32BE(1)) {
      const end = 1 + received.readUInt32BE(1);
      take(socket, String.fromCharCode(received[0]), received.subarray(5, end));
      received = received.subarray(end);
    }
  });
  socket.on("error", (error) => say(`connection: ${error.message}`));
  socket.on("close", () => (ending ? process.exit(1) : setTimeout(session, RECONNECT_MS)));
}

function send(socket) {
  last = ending;
  if (socket.writable) socket.write(message("Q", `${query}\0`));
}

function take(socket, type, body) {
  if (type === "Z") setTimeout(() => send(socket), EVERY_MS);
  if (type === "E") say(`refused: ${body.toString("latin1").replaceAll("\0", " ")}`);
  if (type === "C") say("writes");
  if ((type === "C" && last) || (type === "E" && ending)) process.exit(1);
  // One column, and it is not null: two bytes for the count of columns, four for the length.
  if (type === "D" && body.readInt32BE(2) > 0) process.exit(Number(body.subarray(6).toString()));
}

session();
