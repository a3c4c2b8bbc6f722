export const up = (pgm) => {
  pgm.noTransaction();
  pgm.createIndex("npm_thing", "i", { name: "npm_thing_three", concurrently: true, unique: true });
};
export const down = false;
