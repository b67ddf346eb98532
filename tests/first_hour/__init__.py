"""What a new user meets in the first hour: snippets that work when pasted, mistakes that are answered well."""
