/** Words of a plain read (reads.ts): key words, and built-in functions that change nothing and can be called twice. */

/** What a word may do. */
export const FIRST = 1;
/** Nowhere in a read. */
export const NEVER = 2;
/** May stand in front of a parenthesis: a key word that cannot be a function's name, or a harmless function. */
export const OPENS = 4;
export const AS = 8;
export const FOR = 16;
export const LOCKS = 32;
export const ORDERS = 64;
export const BY = 128;
/** OVER, FILTER, WITHIN: key words only behind a closing parenthesis. */
export const BEHIND_CALL = 256;
export const JOIN = 512;
/** What a JOIN that joins a parenthesis stands behind; LEFT and RIGHT are functions, too. */
export const SIDE = 1024;
export const CATALOG = 2048;
/** DISTINCT ON (…), behind which an expression begins: OVER, FILTER and WITHIN are functions' names there. */
export const DISTINCT = 4096;
export const ON = 8192;

/**
 * An application may have functions of these names for arguments of its own: what they write is hidden as behind a view.
 * Names that a writing function could well have (log, reverse, sign) are therefore not here.
 */
export const READ_WORDS: readonly (readonly [kind: number, words: string])[] = [
  [FIRST | OPENS, "select values"],
  [FIRST, "table with"],
  // Settings of the transaction can be seen there; the seat belt is not the client's business.
  [NEVER, "insert update delete merge into pg_settings"],
  [AS | OPENS, "as"],
  [FOR, "for"],
  [LOCKS, "no key share"],
  [ORDERS, "order partition"],
  [ORDERS | OPENS, "group"],
  [BY, "by"],
  [BEHIND_CALL, "over filter within"],
  [JOIN, "join"],
  [SIDE | OPENS, "left right"],
  [SIDE, "cross full inner natural outer"],
  [DISTINCT | OPENS, "distinct"],
  [ON | OPENS, "on"],
  [CATALOG, "pg_catalog"],
  [
    OPENS,
    `all and any array between case cast coalesce else except exists extract from greatest grouping having in
    intersect lateral least limit not nullif offset only or overlay position row some substring then trim union using when
    where`,
  ],
  [OPENS, "bit bpchar char character dec decimal float interval numeric time timestamp timestamptz varchar"],
  [OPENS, "current_time current_timestamp localtime localtimestamp"],
  [OPENS, "array_agg avg bit_and bit_or bool_and bool_or count every max min string_agg sum"],
  [OPENS, "corr covar_pop covar_samp mode percentile_cont percentile_disc stddev stddev_pop stddev_samp variance"],
  [OPENS, "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number"],
  [OPENS, "abs ceil ceiling div exp floor gcd lcm ln mod pi power random round sqrt trunc width_bucket"],
  [
    OPENS,
    `ascii bit_length btrim char_length character_length chr concat concat_ws convert_from decode encode format initcap
    length like lower lpad ltrim md5 octet_length quote_ident quote_literal quote_nullable regexp_match regexp_matches
    regexp_replace regexp_split_to_array regexp_split_to_table replace rpad rtrim sha256 split_part
    starts_with strpos substr to_hex translate upper`,
  ],
  [
    OPENS,
    `age clock_timestamp date_bin date_part date_trunc isfinite justify_days justify_hours justify_interval make_date
    make_interval make_time make_timestamp make_timestamptz now statement_timestamp to_char to_date to_number to_timestamp
    transaction_timestamp`,
  ],
  [
    OPENS,
    `array_append array_cat array_length array_lower array_ndims array_position array_positions array_prepend array_remove
    array_replace array_to_string array_upper cardinality generate_series generate_subscripts string_to_array unnest`,
  ],
  [
    OPENS,
    `array_to_json json_agg json_array_elements json_array_elements_text json_array_length json_build_array json_build_object
    json_each json_each_text json_extract_path json_extract_path_text json_object json_object_agg json_object_keys
    json_strip_nulls json_typeof jsonb_agg jsonb_array_elements jsonb_array_elements_text jsonb_array_length
    jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_object
    jsonb_object_agg jsonb_object_keys jsonb_path_exists jsonb_path_query jsonb_path_query_array jsonb_path_query_first
    jsonb_pretty jsonb_set jsonb_strip_nulls jsonb_typeof row_to_json to_json to_jsonb`,
  ],
  [OPENS, "isempty lower_inc lower_inf upper_inc upper_inf daterange int4range int8range numrange tsrange tstzrange"],
  [
    OPENS,
    "plainto_tsquery phraseto_tsquery to_tsquery to_tsvector ts_headline ts_rank ts_rank_cd websearch_to_tsquery",
  ],
  [
    OPENS,
    `col_description current_database current_schema current_schemas format_type gen_random_uuid has_column_privilege
    has_database_privilege has_function_privilege has_schema_privilege has_sequence_privilege has_table_privilege
    obj_description pg_encoding_to_char pg_function_is_visible pg_get_constraintdef pg_get_expr
    pg_get_function_arguments pg_get_function_identity_arguments pg_get_function_result pg_get_functiondef
    pg_get_indexdef pg_get_partkeydef pg_get_serial_sequence pg_get_triggerdef pg_get_userbyid pg_get_viewdef
    pg_has_role pg_table_is_visible pg_type_is_visible pg_typeof shobj_description to_regclass to_regproc to_regtype version`,
  ],
];
