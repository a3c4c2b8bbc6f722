export const up = (pgm) => {
  pgm.createTable("npm_thing", { i: "int" });
  pgm.sql("INSERT INTO npm_thing VALUES (1), (1)");
};
export const down = (pgm) => pgm.dropTable("npm_thing");
