-- Without them Postgres would take the documents to check for a thousand, however many they are.
analyze checked_members
