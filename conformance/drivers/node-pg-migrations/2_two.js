export const up = (pgm) => {
  pgm.noTransaction();
  pgm.createIndex("npm_thing", "i", { name: "npm_thing_two", concurrently: true });
};
export const down = (pgm) => {
  pgm.noTransaction();
  pgm.dropIndex("npm_thing", "i", { name: "npm_thing_two", concurrently: true });
};
