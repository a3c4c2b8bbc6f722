CREATE TABLE "drizzle_thing" ("id" integer PRIMARY KEY NOT NULL, "v" text);
--> statement-breakpoint
CREATE INDEX "drizzle_thing_v" ON "drizzle_thing" ("v");
