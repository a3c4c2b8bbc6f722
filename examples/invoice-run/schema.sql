-- The tables of the example. The application's role needs nothing beyond the usual rights on them.
CREATE TABLE invoice_due (customer text PRIMARY KEY, amount numeric NOT NULL);
CREATE TABLE invoice (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer text NOT NULL,
  amount numeric NOT NULL,
  written_by text NOT NULL
);
GRANT SELECT ON invoice_due TO invoice_app;
GRANT SELECT, INSERT ON invoice TO invoice_app;
INSERT INTO invoice_due VALUES ('Amsel', 120.00), ('Buchfink', 75.50), ('Dohle', 310.20);
